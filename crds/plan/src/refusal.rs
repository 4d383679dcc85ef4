//! Reasons why a model cannot be trained as a job asks; each error names the field, the value and what is
//! expected. `model_check` decides when they apply.

use rlt_api::conflicts::Refusal;
use rlt_models::ModelConfigError;

/// Reason why a model cannot be trained as the job asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelRefusal {
    /// A parallelism degree does not divide the tensors or layers of the model.
    #[error("{field}: {degree} ranks cannot share {shared}: expected {expected}")]
    Degree {
        /// Field that sets the degree.
        field: &'static str,
        /// Requested degree: ranks that would share the tensors.
        degree: u32,
        /// Part of the model that the ranks would share, with its sizes.
        shared: String,
        /// Degrees that fit the model.
        expected: String,
    },
    /// The table of conflicts refuses a setting for this model or device.
    #[error("{0}")]
    Conflict(Refusal),
    /// `unshardedLayers` exceeds the number of layers of the model.
    #[error(
        "spec.training.unshardedLayers: the model has {num_layers} layers: expected 1 to {num_layers}, got {got}"
    )]
    UnshardedLayers {
        /// Requested number of unsharded layers.
        got: u32,
        /// Number of layers of the model.
        num_layers: usize,
    },
    /// The job's quantization contradicts that of the model's files.
    #[error("spec.model.quantization: {0}")]
    Quantization(ModelConfigError),
    /// Sequences can exceed the length for which the model's rotary embedding has one set of frequencies.
    #[error(
        "spec.data.maxPromptTokens and spec.rollout.maxCompletionTokens: sequences of {got} tokens need \
         the long factors of the model's LongRoPE, which are not supported: expected at most {longest} \
         together, or spec.rollout.maxModelTokens: {longest}"
    )]
    TooLong {
        /// Length of the longest sequence in tokens.
        got: u64,
        /// Longest sequence in tokens that uses the short factors.
        longest: u64,
    },
}
