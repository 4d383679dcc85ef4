//! The sample that a function gets.

use std::sync::Arc;

use rlt_core::types::Prompt;

/// Name of a sample of a batch: its prompt, and its index among the samples of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleId {
    /// Index of the prompt in the batch.
    pub prompt_idx: usize,
    /// Index among the samples of the prompt.
    pub sample_idx: usize,
}

/// Fields of a sample that an external function gets.
#[derive(Clone, Debug)]
pub(super) struct ExternalSample {
    pub(super) id: SampleId,
    pub(super) prompt: Arc<Prompt>,
    pub(super) completion: String,
    pub(super) num_tokens: usize,
}
