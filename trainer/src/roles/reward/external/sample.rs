//! The sample that a function gets.

use std::sync::Arc;

use rlt_core::types::Prompt;

/// Index of a sample's prompt in the batch, and of the sample in its group.
pub type SampleId = (usize, usize);

/// Fields of a sample that an external function gets.
#[derive(Clone, Debug)]
pub(super) struct ExternalSample {
    pub(super) id: SampleId,
    pub(super) prompt: Arc<Prompt>,
    pub(super) completion: String,
    pub(super) num_tokens: usize,
}
