//! Online DPO (arXiv 2402.04792): the best and the worst completion of each rollout group form a pair.

use rlt_data::Pipeline;

use super::{GroupSampling, PairLoss, Recipe};
use crate::roles::{Roles, StepError};
use rlt_core::preferences::best_and_worst;
use serde_json::Value;

/// The recipe of online DPO. One step: sample, score, pair the best and the worst of each group, then update
/// as [`super::Preference`].
pub struct OnlineDpo {
    /// Sampling of the groups.
    pub sampling: GroupSampling,
    /// Loss of the pairs.
    pub loss: PairLoss,
}

impl Recipe for OnlineDpo {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let groups = self.sampling.groups(roles, data)?;
        let pairs = best_and_worst(&groups, &roles.rewards.masked);
        if pairs.is_empty() {
            // All completions of every group are equally good: nothing is preferred.
            return Ok(());
        }
        let batch = roles.rewards.batch(&pairs)?;
        let batch = roles.reference.score(&roles.actor, batch)?;
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
}
