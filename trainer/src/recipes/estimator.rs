//! The advantage estimator of a manifest, and its inputs besides rewards: a greedy baseline, and the sum of
//! squared probabilities. The formulas are in `rlt-core`.

use std::sync::Arc;

use rlt_api::resolved;
use rlt_api::spec::RewardsSpec;
use rlt_core::advantage::{AdvantageEstimator, AdvantageInputs, EstimatorInput};
use rlt_core::batch::Batch;
use rlt_core::metrics::{Metrics, summarize};
use rlt_core::types::{Prompt, RolloutGroup};

use crate::roles::{Roles, StepError};

/// Computes advantages from token rewards, and returns where there is a critic.
#[derive(Clone, Debug)]
pub struct Estimator {
    estimator: AdvantageEstimator,
    /// Name and weight of each reward function.
    weights: Vec<(String, f64)>,
}

impl Estimator {
    /// Creates the estimator of `algorithm`.
    pub fn of(algorithm: &resolved::PolicyGradient, rewards: &RewardsSpec) -> Self {
        let weights = rewards.functions.iter().map(|function| (function.name.clone(), function.weight));
        Self { estimator: algorithm.advantage, weights: weights.collect() }
    }

    /// Whether the estimator reads the actor's log-probs from before the update.
    pub fn reads_old_logprobs(&self) -> bool {
        self.estimator.reads(EstimatorInput::SumPiSquared)
    }

    /// Fills in the rewards of greedy completions, where the estimator uses them as a baseline (ReMax).
    ///
    /// # Errors
    /// The errors of rollout and rewards.
    pub fn greedy_baseline(
        &self,
        roles: &mut Roles,
        mut batch: Batch,
        groups: &[RolloutGroup],
    ) -> Result<Batch, StepError> {
        if !self.estimator.reads(EstimatorInput::GreedyRewards) {
            return Ok(batch);
        }
        let prompts: Vec<Arc<Prompt>> = groups.iter().map(|group| Arc::clone(&group.prompt)).collect();
        let sampled = roles.rollout.sample_greedy(&roles.actor, &prompts)?;
        let (greedy, _) = roles.rewards.judge_unrecorded(sampled)?;
        let reward = |group_idx: &usize| greedy[*group_idx].rollouts[0].reward.value;
        batch.greedy_rewards = Some(batch.groups.iter().map(reward).collect());
        Ok(batch)
    }

    /// Fills in advantages, and returns where the batch has values.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn estimate(&self, roles: &Roles, mut batch: Batch) -> Result<Batch, StepError> {
        let estimated = roles.context().measure("adv", || -> Result<_, StepError> {
            let is_wanted = self.estimator.reads(EstimatorInput::SumPiSquared);
            let weights = self.weights_of(&batch);
            let sum_pi_squared = is_wanted.then(|| roles.actor.sum_pi_squared(&batch)).transpose()?;
            let inputs = AdvantageInputs {
                greedy_rewards: batch.greedy_rewards.as_deref(),
                old_logprobs: batch.old_logprobs.as_deref(),
                sum_pi_squared: sum_pi_squared.as_deref(),
                importance_weights: batch.importance_weights.as_deref(),
                values: batch.values.as_deref(),
                reward_parts: &batch.reward_parts,
                reward_weights: &weights,
                ..AdvantageInputs::new(&batch.rows, &batch.token_rewards, &batch.groups)
            };
            Ok(self.estimator.estimate(&inputs)?)
        })?;
        batch.returns = batch.values.is_some().then_some(estimated.returns);
        batch.advantages = estimated.advantages;
        let mut metrics = Metrics::new();
        let counted = batch.rows.valid(0..batch.rows.num_tokens()).map(|token| batch.advantages[token]);
        summarize(&mut metrics, "critic/advantages", counted.collect::<Vec<f64>>());
        roles.context().record(metrics);
        roles.context().record_advantages(&batch);
        Ok(batch)
    }

    /// Returns the weights of the batch's reward functions, in the order of `batch.reward_names`; 1 for an
    /// unknown name.
    fn weights_of(&self, batch: &Batch) -> Vec<f64> {
        let weight = |name: &String| self.weights.iter().find(|(n, _)| n == name).map_or(1.0, |(_, w)| *w);
        batch.reward_names.iter().map(weight).collect()
    }
}
