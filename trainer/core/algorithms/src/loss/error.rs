//! Errors in computing a loss.

use thiserror::Error;

use crate::rows::RowsError;

/// Inputs from which a loss cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LossError {
    /// The length of a slice does not match the rows.
    #[error("loss inputs do not fit together")]
    Rows(#[from] RowsError),
    /// An input that the loss reads is missing.
    #[error("loss {loss} needs {input}, which is missing")]
    Missing {
        /// Name of the loss in manifests, or `kl`, `positive`.
        loss: &'static str,
        /// Name of the field of [`super::LossInputs`].
        input: &'static str,
    },
    /// A chunk is not within the rows, or its slices have another length.
    #[error(
        "chunk {start}..{end} of {num_tokens} tokens came with {num_logprobs} log-probs and {num_entropies} \
         entropies"
    )]
    Chunk {
        /// Index of the chunk's first token.
        start: usize,
        /// Index after the chunk's last token.
        end: usize,
        /// Number of tokens of the rows.
        num_tokens: usize,
        /// Number of log-probs of the chunk.
        num_logprobs: usize,
        /// Number of entropies of the chunk.
        num_entropies: usize,
    },
}
