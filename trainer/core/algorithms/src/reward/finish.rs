//! The reason why the sampling of a completion ended.

use serde::{Deserialize, Serialize};

/// Reason why the sampling of a completion ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string was sampled.
    #[default]
    Stop,
    /// The maximum number of new tokens was reached: `rollout.maxCompletionTokens` in a training.
    Length,
    /// Prompt and completion together reached the model's context or `rollout.maxModelTokens`, before the
    /// maximum number of new tokens.
    Context,
}

impl FinishReason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Length, Self::Context];

    /// Whether a limit cut the completion, whichever it was.
    pub fn is_truncated(self) -> bool {
        self != Self::Stop
    }
}
