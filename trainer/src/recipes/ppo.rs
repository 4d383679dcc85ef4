//! PPO (arXiv 1707.06347): advantages by generalized advantage estimation (GAE) over the values of a critic.

use rlt_api::resolved::{self, ResolvedSpec};
use rlt_data::Pipeline;

use super::{PolicyGradient, Recipe};
use crate::roles::objective::objective;
use crate::roles::{Roles, StepError};

/// The recipe of PPO. One step: sample, compute rewards, score, compute values, estimate advantages, update
/// critic and actor. Its components are those of [`PolicyGradient`].
pub struct Ppo(PolicyGradient);

impl Ppo {
    /// Creates the recipe of `algorithm`.
    pub fn new(algorithm: &resolved::PolicyGradient, spec: &ResolvedSpec) -> Self {
        Self(PolicyGradient::new(algorithm, spec))
    }
}

impl Recipe for Ppo {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let PolicyGradient { sampling, correction, estimator, filtration, algorithm } = &self.0;
        let groups = sampling.groups(roles, data)?;
        let batch = roles.rewards.batch(&groups)?;
        let reads_old_logprobs = !roles.actor.is_on_policy(&batch)
            || roles.critic.is_warming_up()
            || correction.reads_old_logprobs()
            || roles.reference.reads_old_logprobs();
        let batch = if reads_old_logprobs { roles.actor.score(batch)? } else { batch };
        let batch = roles.reference.score(&roles.actor, batch)?;
        let batch = roles.critic.value(batch)?;
        let objective = objective(algorithm, roles.reference.kl_coefficient());
        let batch = correction.penalize_and_apply(roles, batch)?;
        let batch = estimator.estimate(roles, batch)?;
        let batch = filtration.draw(roles, batch);
        roles.critic.update(&batch)?;
        if roles.critic.is_warming_up() { Ok(()) } else { roles.actor.update(&batch, &objective) }
    }
}
