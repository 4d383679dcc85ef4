//! `spec.algorithm.critic`: how the critic learns. Estimators that use its values are in `advantage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Critic: a copy of the model with a value head, trained like the actor, in full or as an adapter of its
/// own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CriticSpec {
    /// Learning rate of the critic, constant over the training.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: f64,
    /// Number of steps in which only the critic learns, before the actor's first update; by default the
    /// preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000000))]
    pub warmup_steps: Option<u32>,
    /// Clip range of the value loss (verl's `cliprange_value`): how far a prediction may move from the one
    /// before the update and still lower the loss.
    #[schemars(range(min = 0.0, max = 1000000.0))]
    pub value_clip: f64,
}

impl Default for CriticSpec {
    /// Uses verl's values.
    fn default() -> Self {
        Self { learning_rate: 1e-5, warmup_steps: None, value_clip: 0.5 }
    }
}
