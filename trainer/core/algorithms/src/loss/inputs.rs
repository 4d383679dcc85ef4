//! Values of a batch's tokens that losses read.

use crate::rows::Rows;

/// The sequences of one micro-batch and the values of their tokens.
#[derive(Clone, Copy, Debug)]
pub struct LossInputs<'a> {
    /// Sequences and loss masks.
    pub rows: &'a Rows,
    /// Advantage of each token.
    pub advantages: &'a [f64],
    /// Log-probs under the old policy. `None` means that the old policy is the actor itself (one update per
    /// batch): the ratio is 1 and no forward pass is needed.
    pub old_logprobs: Option<&'a [f64]>,
    /// Log-probs under the reference; needed if the objective has a KL term.
    pub ref_logprobs: Option<&'a [f64]>,
    /// Token weights of the rollout correction; factors of the policy loss only.
    pub importance_weights: Option<&'a [f64]>,
    /// The actor's log-probs from a forward pass, for [`super::LossScope::Sequence`] with `old_logprobs`.
    pub actor_logprobs: Option<&'a [f64]>,
    /// Tokens chosen by [`super::PolicyLoss::select_tokens`], for [`super::LossScope::Batch`].
    pub selected: Option<&'a [bool]>,
    /// Weight of each token in [`super::Objective::positive`], by [`super::Objective::positive_weights`] of
    /// the whole update.
    pub positive_weights: Option<&'a [f64]>,
}

impl<'a> LossInputs<'a> {
    /// Makes the inputs of an on-policy update; set further fields as needed.
    pub fn new(rows: &'a Rows, advantages: &'a [f64]) -> Self {
        Self {
            rows,
            advantages,
            old_logprobs: None,
            ref_logprobs: None,
            importance_weights: None,
            actor_logprobs: None,
            selected: None,
            positive_weights: None,
        }
    }
}

/// Inputs of [`super::PolicyLoss::select_tokens`] for the whole batch, one value per token.
#[derive(Clone, Copy, Debug)]
pub struct CovarianceInputs<'a> {
    /// All sequences of the update's batch.
    pub rows: &'a Rows,
    /// Advantage of each token.
    pub advantages: &'a [f64],
    /// Current log-probs under the actor.
    pub logprobs: &'a [f64],
    /// Log-probs under the old policy; `None` if that is the actor.
    pub old_logprobs: Option<&'a [f64]>,
    /// Seed of Clip-Cov's choice among the candidates.
    pub seed: u64,
}
