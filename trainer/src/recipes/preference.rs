//! DPO (arXiv 2305.18290) and its family: chosen completions become more likely than rejected ones.
//!
//! A step takes two passes: all log-probs first, then an update by the derivatives of the loss. Pairs in one
//! micro-batch would save a forward pass, but restrict budgets, ranks and sequence parallelism.

use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_data::Pipeline;
use serde_json::Value;

use super::{PairLoss, Recipe};
use crate::roles::{Roles, StepError};

/// The recipe of DPO. One step: score the pairs of a data set under the reference and the actor, compute the
/// loss, update.
pub struct Preference {
    /// Number of pairs per step.
    pub batch_size: usize,
    /// Loss of the pairs.
    pub loss: PairLoss,
}

impl Recipe for Preference {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let pairs = data.next_preferences(self.batch_size)?.ok_or(StepError::NoPreferences)?;
        let batch = Batch::from_preferences(&pairs);
        let batch = roles.reference.score_once(&roles.actor, batch)?;
        let batch = roles.actor.score(batch)?;
        let loss = self.loss.with(&batch)?;
        let outputs = loss.evaluate(roles, &batch)?;
        roles.context().record(loss.metrics(&outputs));
        roles.actor.update_by_gradient(batch, &outputs.dlogprobs)?;
        self.loss = loss;
        Ok(())
    }

    fn state(&self) -> Value {
        self.loss.state()
    }

    fn resume(&mut self, state: Value) -> Result<(), serde_json::Error> {
        self.loss.resume(state)
    }

    fn evaluate(&self, roles: &mut Roles, data: &Pipeline) -> Result<Metrics, StepError> {
        let pairs = data.held_out_preferences();
        if pairs.is_empty() {
            return Ok(Metrics::new());
        }
        let batch = roles.reference.score_once(&roles.actor, Batch::from_preferences(pairs))?;
        let batch = roles.actor.score(batch)?;
        Ok(self.loss.metrics(&self.loss.evaluate(roles, &batch)?))
    }
}
