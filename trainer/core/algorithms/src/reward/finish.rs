//! Why a completion ended.

use serde::{Deserialize, Serialize};

/// Why a completion ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string was produced.
    #[default]
    Stop,
    /// `maxCompletionTokens` or the model's context was reached.
    Length,
}
