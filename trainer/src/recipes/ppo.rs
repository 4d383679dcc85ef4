//! PPO (arXiv 1707.06347): advantages by generalized estimation over the values of a critic.

use rlt_api::resolved::{self, ResolvedSpec};

use super::{Estimator, GroupSampling, Recipe, RolloutCorrection};
use crate::data::Data;
use crate::roles::objective::objective;
use crate::roles::{Roles, StepError};

/// One step: sample, judge, score, value, estimate, update critic and actor.
pub struct Ppo {
    sampling: GroupSampling,
    correction: RolloutCorrection,
    estimator: Estimator,
    algorithm: resolved::PolicyGradient,
}

impl Ppo {
    /// As the manifest says.
    pub fn new(algorithm: &resolved::PolicyGradient, spec: &ResolvedSpec) -> Self {
        Self {
            sampling: GroupSampling::of(spec),
            correction: RolloutCorrection::of(algorithm),
            estimator: Estimator::of(algorithm, &spec.rewards),
            algorithm: algorithm.clone(),
        }
    }
}

impl Recipe for Ppo {
    fn step(&mut self, roles: &mut Roles, data: &mut Data) -> Result<(), StepError> {
        let groups = self.sampling.groups(roles, data)?;
        let batch = roles.rewards.batch(&groups)?;
        let reads_old_logprobs = !roles.actor.is_on_policy(&batch)
            || roles.critic.is_warming_up()
            || self.correction.reads_old_logprobs()
            || roles.reference.reads_old_logprobs();
        let batch = if reads_old_logprobs { roles.actor.score(batch)? } else { batch };
        let batch = roles.reference.score(&roles.actor, batch)?;
        let batch = roles.critic.value(batch)?;
        let batch = self.correction.apply(roles, batch)?;
        let objective = objective(&self.algorithm, roles.reference.kl_coefficient());
        let batch = roles.reference.penalize(batch)?;
        let batch = self.estimator.estimate(roles, batch)?;
        roles.critic.update(&batch)?;
        if roles.critic.is_warming_up() { Ok(()) } else { roles.actor.update(&batch, &objective) }
    }
}
