//! Policy gradients without a critic: GRPO (arXiv 2402.03300) and its family, from RLOO to DAPO.
//!
//! A group of completions is sampled for each prompt, and each is compared with the others of its group.

use rlt_api::resolved::{self, ResolvedSpec};
use rlt_data::Pipeline;

use super::{Estimator, GroupSampling, PolicyFiltration, Recipe, RolloutCorrection};
use crate::roles::objective::objective;
use crate::roles::{Roles, StepError};

/// A policy gradient without a critic. One step: sample, compute rewards, score, estimate advantages, update.
pub struct PolicyGradient {
    pub(super) sampling: GroupSampling,
    pub(super) correction: RolloutCorrection,
    pub(super) estimator: Estimator,
    pub(super) filtration: PolicyFiltration,
    pub(super) algorithm: resolved::PolicyGradient,
}

impl PolicyGradient {
    /// Creates the recipe of `algorithm`.
    pub fn new(algorithm: &resolved::PolicyGradient, spec: &ResolvedSpec) -> Self {
        Self {
            sampling: GroupSampling::of(spec),
            correction: RolloutCorrection::of(algorithm),
            estimator: Estimator::of(algorithm, &spec.rewards),
            filtration: PolicyFiltration::of(algorithm),
            algorithm: algorithm.clone(),
        }
    }
}

impl Recipe for PolicyGradient {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let groups = self.sampling.groups(roles, data)?;
        let batch = roles.rewards.batch(&groups)?;
        let batch = self.estimator.greedy_baseline(roles, batch, &groups)?;
        let reads_old_logprobs = !roles.actor.is_on_policy(&batch)
            || self.correction.reads_old_logprobs()
            || roles.reference.reads_old_logprobs()
            || self.estimator.reads_old_logprobs();
        let batch = if reads_old_logprobs { roles.actor.score(batch)? } else { batch };
        let batch = roles.reference.score(&roles.actor, batch)?;
        let objective = objective(&self.algorithm, roles.reference.kl_coefficient());
        let batch = self.correction.penalize_and_apply(roles, batch)?;
        let batch = self.estimator.estimate(roles, batch)?;
        let batch = self.filtration.draw(roles, batch);
        roles.actor.update(&batch, &objective)
    }
}
