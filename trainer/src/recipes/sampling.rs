//! Rollout groups of one step: samples completions and computes rewards. Dynamic sampling (DAPO, arXiv
//! 2503.14476) repeats this until enough groups have rewards that differ.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::{DynamicSamplingMetric, DynamicSamplingSpec};
use rlt_core::dapo::keeps_group;
use rlt_core::metrics::Metrics;
use rlt_core::types::{RewardStatus, RolloutGroup};
use rlt_data::Pipeline;

use crate::roles::reward::SamplingCost;
use crate::roles::{Roles, StepError};

/// Number of groups of a step, and the filter of dynamic sampling.
#[derive(Clone, Debug)]
pub struct GroupSampling {
    /// Number of prompts per generated batch, and maximum number of groups of the step.
    pub num_prompts: usize,
    /// Filter of dynamic sampling; `None` keeps all groups.
    pub dynamic: Option<DynamicSamplingSpec>,
}

impl GroupSampling {
    /// Creates the sampling of a job.
    pub fn of(spec: &ResolvedSpec) -> Self {
        let algorithm = spec.algorithm.policy_gradient.as_ref();
        Self {
            num_prompts: spec.training.prompts_per_step as usize,
            dynamic: algorithm.and_then(|algorithm| algorithm.dynamic_sampling.clone()),
        }
    }

    /// Samples the groups of the current step. Fewer than [`Self::num_prompts`] are returned where dynamic
    /// sampling reaches its maximum of batches.
    ///
    /// # Errors
    /// [`StepError::Interrupted`] when a rank was asked to stop, and the errors of rollout and rewards.
    pub fn groups(&self, roles: &mut Roles, data: &mut Pipeline) -> Result<Vec<RolloutGroup>, StepError> {
        let max_batches = self.dynamic.as_ref().map_or(1, |dynamic| dynamic.max_batches);
        let mut groups: Vec<RolloutGroup> = Vec::new();
        let (mut num_batches, mut cost) = (0, SamplingCost::default());
        while groups.len() < self.num_prompts && num_batches < max_batches {
            let prompts = data.next_prompts(self.num_prompts)?.ok_or(StepError::NoPrompts)?;
            let sampled = roles.rollout.sample(&roles.actor, &prompts)?;
            let (judged, own_cost) = roles.rewards.judge_unrecorded(sampled)?;
            num_batches += 1;
            cost.add(own_cost);
            let is_last = num_batches == max_batches;
            match &self.dynamic {
                Some(dynamic) if !(is_last && groups.is_empty()) => {
                    let masked = &roles.rewards.masked;
                    groups.extend(judged.into_iter().filter(|group| has_signal(group, masked, dynamic)));
                }
                // Without dynamic sampling, or if the rewards of no group differ, the step continues with the
                // groups that it has.
                _ => groups.extend(judged),
            }
        }
        groups.truncate(self.num_prompts);
        roles.context().record_groups(&groups, &roles.rewards.masked);
        roles.context().record(cost.metrics());
        roles.context().record(Metrics::from([("train/num_gen_batches".into(), f64::from(num_batches))]));
        Ok(groups)
    }
}

fn has_signal(group: &RolloutGroup, masked: &[RewardStatus], dynamic: &DynamicSamplingSpec) -> bool {
    keeps_group(group, masked, |rollout| match dynamic.metric {
        DynamicSamplingMetric::Reward => rollout.reward.value,
        DynamicSamplingMetric::Score => rollout.reward.score,
    })
}

#[cfg(test)]
mod tests {
    use rlt_core::fixtures::{prompt, rollout};
    use rlt_core::types::Reward;
    use rlt_tests::{choices, tiny_job_with};
    use serde_json::json;

    use super::*;

    /// Returns a group of two samples with these scores, and these rewards after the penalty on length.
    fn group(scores: [f64; 2], values: [f64; 2]) -> RolloutGroup {
        let prompt = prompt(&[1]);
        let sample = |(score, value): (f64, f64)| {
            rollout(&prompt, &[2], Reward { value, ..Reward::from_score(score) })
        };
        RolloutGroup { rollouts: scores.into_iter().zip(values).map(sample).collect(), prompt }
    }

    #[test]
    fn every_metric_of_dynamic_sampling_compares_its_own_value_of_the_samples() {
        // Whether a group is kept whose scores alone differ, and one whose rewards alone differ.
        let table = [("Score", [true, false]), ("Reward", [false, true])];
        assert_eq!(choices("spec.algorithm.dynamicSampling.metric"), table.map(|(metric, _)| metric));
        for (metric, expected) in table {
            let algorithm = json!({ "dynamicSampling": { "metric": metric } });
            let job =
                rlt_api::validate(&tiny_job_with(json!({ "algorithm": algorithm })).to_string()).unwrap();
            let dynamic = GroupSampling::of(job.spec()).dynamic.unwrap();
            let groups = [group([0.0, 1.0], [0.5, 0.5]), group([0.5, 0.5], [0.0, 1.0])];
            assert_eq!(groups.map(|group| has_signal(&group, &[], &dynamic)), expected, "{metric}");
        }
    }
}
