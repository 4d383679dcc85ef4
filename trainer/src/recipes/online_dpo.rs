//! Online DPO (arXiv 2402.04792): the best and the worst completion of a rollout group are a pair.

use super::{GroupSampling, PairLoss, Recipe};
use crate::data::Data;
use crate::roles::{Roles, StepError};
use rlt_core::preferences::best_and_worst;
use serde_json::Value;

/// One step: sample, judge, take the best and the worst of each group, then as with pairs of a data set.
pub struct OnlineDpo {
    /// How groups are sampled.
    pub sampling: GroupSampling,
    /// How pairs become a loss.
    pub loss: PairLoss,
}

impl Recipe for OnlineDpo {
    fn step(&mut self, roles: &mut Roles, data: &mut Data) -> Result<(), StepError> {
        let pairs = best_and_worst(&self.sampling.groups(roles, data)?);
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
        roles.actor.descend(batch, &outputs.dlogprobs)?;
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
