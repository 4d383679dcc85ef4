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
mod error;
mod formula;
mod imitation;
mod inputs;
mod likelihood;
mod metrics;
mod objective;
mod policy;
mod sapo;
mod sequence;
mod value;

pub use aggregation::{Aggregation, Denominators};
pub use covariance::{COVARIANCE_HIGH, COVARIANCE_LOW};
pub use error::LossError;
pub use formula::{CLIP_HIGH, CLIP_LOW, DUAL_CLIP, LossScope, PENALTY};
pub use imitation::{ImitationLoss, imitation_loss};
pub use inputs::{CovarianceInputs, LossInputs};
pub use metrics::LossMetrics;
pub use objective::{KlTerm, LossOutputs, LossWeights, Objective, PositiveTerm, PreparedLoss};
pub use value::{ValueLoss, ValueLossInputs, value_loss};

register! {
    /// The policy losses.
    pub names PolicyLossKind,
    /// A policy loss with its parameters.
    pub formulas PolicyLoss: formula::TokenFormula,
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
