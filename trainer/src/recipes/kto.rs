//! KTO (arXiv 2402.01306): completions that are each desirable or not.

use rlt_core::metrics::Metrics;
use rlt_data::Pipeline;

use super::{LabelLoss, Recipe};
use crate::roles::{Roles, StepError};

/// The recipe of KTO. One step: measure the reference point on mismatched completions, score the completions,
/// compute the loss, update.
pub struct LabelledCompletions {
    /// Number of examples per step.
    pub batch_size: usize,
    /// Loss of the completions.
    pub loss: LabelLoss,
}

impl Recipe for LabelledCompletions {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let examples = data.next_preferences(self.batch_size)?.ok_or(StepError::NoPreferences)?;
        let point = self.loss.reference_point(roles, &examples)?;
        let batch = LabelLoss::score(roles, &examples)?;
        let outputs = self.loss.evaluate(&batch, &examples, &point)?;
        roles.context().record(LabelLoss::metrics(&outputs, &point));
        roles.actor.update_by_gradient(batch, &outputs.dlogprobs)
    }

    fn evaluate(&self, roles: &mut Roles, data: &Pipeline) -> Result<Metrics, StepError> {
        let examples = data.held_out_preferences();
        if examples.is_empty() {
            return Ok(Metrics::new());
        }
        let point = self.loss.reference_point(roles, examples)?;
        let batch = LabelLoss::score(roles, examples)?;
        Ok(LabelLoss::metrics(&self.loss.evaluate(&batch, examples, &point)?, &point))
    }
}
