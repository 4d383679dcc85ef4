//! Inputs of the policy's loss of a micro-batch, gathered from the batch.

use std::sync::Arc;

use rlt_core::loss::{LossInputs, PreparedLoss};
use rlt_core::rows::Rows;

use super::EvaluateLoss;
use crate::roles::learner::MicroBatch;

/// Values of a micro-batch's completion tokens that its loss reads, as [`LossInputs`] borrows them.
#[derive(Clone)]
pub(super) struct PolicyLossInputs {
    pub(super) advantages: Vec<f64>,
    pub(super) old_logprobs: Option<Vec<f64>>,
    pub(super) ref_logprobs: Option<Vec<f64>>,
    pub(super) importance_weights: Option<Vec<f64>>,
    pub(super) actor_logprobs: Option<Vec<f64>>,
    pub(super) selected: Option<Vec<bool>>,
    pub(super) positive_weights: Option<Vec<f64>>,
}

impl PolicyLossInputs {
    /// Borrows the inputs with the micro-batch's `rows`.
    pub(super) fn as_loss_inputs<'a>(&'a self, rows: &'a Rows) -> LossInputs<'a> {
        LossInputs {
            old_logprobs: self.old_logprobs.as_deref(),
            ref_logprobs: self.ref_logprobs.as_deref(),
            importance_weights: self.importance_weights.as_deref(),
            actor_logprobs: self.actor_logprobs.as_deref(),
            selected: self.selected.as_deref(),
            positive_weights: self.positive_weights.as_deref(),
            ..LossInputs::new(rows, &self.advantages)
        }
    }

    /// Returns a function that evaluates `loss` on any thread. The loss must have been prepared with these
    /// inputs.
    pub(super) fn evaluates(self, loss: &PreparedLoss<'_>, micro_batch: &MicroBatch) -> Box<EvaluateLoss> {
        let ((objective, weights), rows) = (loss.owned(), micro_batch.rows.clone());
        Box::new(move |tokens, logprobs, entropies| {
            let loss = objective.resume(self.as_loss_inputs(&rows), Arc::clone(&weights))?;
            loss.evaluate(tokens, logprobs, entropies)
        })
    }
}
