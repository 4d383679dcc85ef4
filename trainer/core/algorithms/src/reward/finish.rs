//! The reason why the sampling of a completion ended.

use serde::{Deserialize, Serialize};

/// Reason why the sampling of a completion ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string was sampled.
    #[default]
    Stop,
    /// `maxCompletionTokens` or the model's context was reached.
    Length,
}
