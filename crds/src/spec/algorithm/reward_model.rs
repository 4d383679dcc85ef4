//! `spec.algorithm.rewardModel`: how a reward model learns from pairs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How pairs of completions train a reward model; only with the kind `RewardModel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RewardModelTrainingSpec {
    /// Factor of the square of the sum of a pair's scores, which is added to the loss so that scores stay
    /// around 0 (<https://arxiv.org/abs/2312.09244>; TRL's `center_rewards_coefficient`); 0 for none.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub centering_coefficient: f64,
}
