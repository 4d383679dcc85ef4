//! `spec.algorithm.rewardModel` and `spec.algorithm.processReward`: how models that judge learn, from pairs
//! of completions or from their steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Training of a reward model from pairs of completions; only for the kind `RewardModel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RewardModelTrainingSpec {
    /// Coefficient of the squared sum of a pair's scores, which is added to the loss and keeps scores around
    /// 0 (<https://arxiv.org/abs/2312.09244>; TRL's `center_rewards_coefficient`); 0 for none.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub centering_coefficient: f64,
}

/// Training of a process reward model from the labelled steps of completions; only for the kind
/// `ProcessReward`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProcessRewardTrainingSpec {
    /// Text after every step; by default a line break. The model judges a step at the last token of its
    /// separator (TRL's `step_separator`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub step_separator: Option<String>,
    /// Whether only the last step of a completion is learned (TRL's `train_on_last_step_only`).
    pub last_step_only: bool,
}
