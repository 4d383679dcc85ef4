//! The objective of an update: policy loss, KL term and entropy bonus, with hand-written gradients.
//!
//! The trainer computes log-probs and entropies of a micro-batch (or of a chunk of it); this module returns
//! the loss and its derivatives with respect to exactly those two, so that no autograd graph of the loss
//! exists:
//!
//! ```text
//! Objective::prepare(LossInputs, Denominators) -> PreparedLoss
//! PreparedLoss::evaluate(chunk, logprobs, entropies) -> LossOutputs { loss, dlogprobs, dentropies, metrics }
//! ```
//!
//! Every aggregation is a weighted sum over tokens whose weights are known before any log-prob is
//! ([`Aggregation::weights`]) and whose [`Denominators`] count the **whole** batch of the update, over all
//! micro-batches and ranks. Partial losses and gradients are added, never averaged: the gradient does not
//! depend on how the batch was split. The tokens that a loss needs at once are its [`LossScope`].
//!
//! Definitions follow verl 0.10 (`core_algos.py`) and the golden test compares values and gradients.
//! Advantages are computed in [`crate::advantage`]; there are no tensors here.

mod aggregation;
mod clipped;
mod covariance;
mod imitation;
mod likelihood;
mod metrics;
mod objective;
mod policy;
mod sapo;
mod sequence;
mod value;

use thiserror::Error;

pub use aggregation::{Aggregation, Denominators};
pub use covariance::{COVARIANCE_HIGH, COVARIANCE_LOW, CovarianceInputs};
pub use imitation::{ImitationLoss, imitation_loss};
pub use metrics::LossMetrics;
pub use objective::{KlTerm, LossInputs, LossOutputs, LossWeights, Objective, PositiveTerm, PreparedLoss};
pub use policy::{CLIP_HIGH, CLIP_LOW, DUAL_CLIP, LossScope, PENALTY};
pub use value::{ValueLoss, ValueLossInputs, value_loss};

use crate::rows::RowsError;

register! {
    /// The policy losses.
    pub names PolicyLossKind,
    /// A policy loss with its parameters.
    pub formulas PolicyLoss: policy::TokenFormula,
    tag "policy",
    [
        clipped::Vanilla,
        sequence::Gspo,
        sapo::Sapo,
        likelihood::Gpg,
        sequence::GeoMean,
        clipped::Cispo,
        clipped::DppoTv,
        clipped::DppoKl,
        likelihood::Dro,
        covariance::ClipCov,
        covariance::KlCov,
    ]
}

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
        /// Name of the field of [`LossInputs`].
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
