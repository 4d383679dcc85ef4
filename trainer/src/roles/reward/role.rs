//! Rewards as a role: it turns samples into rollout groups with rewards, the same on every rank.

use std::rc::Rc;
use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::packed_samples::JudgedGroup;
use rlt_core::reward::Verdict;
use rlt_core::types::{Completion, Prompt, Reward, RewardStatus, Rollout, RolloutGroup};
use rlt_parallel::Ranks;

use super::exchange::{self, OwnSamples};
use super::{PendingRewards, RewardModels, RewardPool, SampleId, Sampled, SamplingCost};
use crate::roles::error::StepError;
use crate::roles::step_context::StepContext;

/// The role that judges completions by reward models and reward functions.
pub struct RewardsRole {
    pub(crate) pool: RewardPool,
    /// Reward models, which score before the pool judges.
    pub(crate) models: RewardModels,
    /// Statuses of rewards whose samples are left out of batches.
    pub(crate) masked: Vec<RewardStatus>,
    pub(crate) ranks: Ranks,
    pub(crate) context: Rc<StepContext>,
}

impl RewardsRole {
    /// Judges this rank's samples, gathers those of all ranks, and records them as the step's rollout groups.
    ///
    /// # Errors
    /// [`StepError::Interrupted`] on all ranks if one was asked to stop, or
    /// [`StepError::Failed`].
    pub fn judge(&mut self, sampled: Sampled) -> Result<Vec<RolloutGroup>, StepError> {
        let (groups, cost) = self.judge_unrecorded(sampled)?;
        self.context.record_groups(&groups, &self.masked);
        self.context.record(cost.metrics());
        Ok(groups)
    }

    /// Judges samples as [`Self::judge`] does, without recording them: some or all of them may not belong to
    /// the step. Also returns their cost.
    pub(crate) fn judge_unrecorded(
        &mut self,
        sampled: Sampled,
    ) -> Result<(Vec<RolloutGroup>, SamplingCost), StepError> {
        let Sampled { prompts, local_groups, pending_rewards, assignment, policy_version, cost } = sampled;
        // Ranks with a sharded reward model judge together or not at all.
        let is_cut_short =
            self.models.are_shared() && self.ranks.all_reduce_max(local_groups.is_none().into())? > 0;
        let local_groups = local_groups.filter(|_| !is_cut_short);
        let judged = local_groups.map(|groups| {
            self.context.measure("reward", || self.judge_groups(&prompts, groups, pending_rewards))
        });
        let judged = judged.transpose()?.filter(|_| self.context.stop_reason().is_none());
        let own = judged.map(|groups| OwnSamples { groups, cost });
        let gathered = self.context.measure("gather", || exchange::all_gather(&self.ranks, own))?;
        let by_rank: Vec<OwnSamples> = gathered.ok_or(StepError::Interrupted)?;
        let mut cost = SamplingCost::default();
        by_rank.iter().for_each(|own| cost.add(own.cost));
        let mut by_rank: Vec<_> = by_rank.into_iter().map(|own| own.groups.into_iter()).collect();
        let group = |(prompt_idx, prompt): (usize, &Arc<Prompt>)| {
            let judged = by_rank[assignment.judge_of(prompt_idx)].next().unwrap_or_default();
            rollout_group(prompt, judged, policy_version)
        };
        Ok((prompts.iter().enumerate().map(group).collect(), cost))
    }

    fn judge_groups(
        &self,
        prompts: &[Arc<Prompt>],
        groups: Vec<(usize, Vec<Completion>)>,
        pending_rewards: Option<PendingRewards>,
    ) -> Result<Vec<JudgedGroup>, StepError> {
        let lens: Vec<usize> = groups.iter().map(|(_, group)| group.len()).collect();
        let ids: Vec<SampleId> = groups
            .iter()
            .flat_map(|(prompt_idx, group)| {
                (0..group.len()).map(|sample_idx| SampleId { prompt_idx: *prompt_idx, sample_idx })
            })
            .collect();
        let samples: Vec<(Arc<Prompt>, Completion)> = groups
            .into_iter()
            .flat_map(|(idx, group)| group.into_iter().map(move |c| (Arc::clone(&prompts[idx]), c)))
            .collect();
        let of_models = self.models.scores(&samples)?;
        let is_stopping = || self.context.stop_reason().is_some();
        let mut elsewhere =
            pending_rewards.map(|pending_rewards| pending_rewards.finish(&is_stopping)).unwrap_or_default();
        let verdicts = ids.iter().zip(of_models).map(|(id, scores)| {
            let mut verdicts = elsewhere.remove(id).unwrap_or_default();
            verdicts.extend(scores.into_iter().map(|(name, score)| (name, Verdict::ok(score))));
            verdicts
        });
        let judged = samples.iter().map(|(prompt, completion)| (prompt, completion)).zip(verdicts);
        let rewards: Vec<Reward> = self.pool.score(judged);
        let mut judged = samples.into_iter().map(|(_, completion)| completion).zip(rewards);
        Ok(lens.into_iter().map(|len| judged.by_ref().take(len).collect()).collect())
    }

    /// Builds a batch of the groups, without samples whose status is masked.
    ///
    /// # Errors
    /// [`StepError::NoRewards`] if no sample is left.
    pub fn batch(&self, groups: &[RolloutGroup]) -> Result<Batch, StepError> {
        let batch = Batch::from_groups(groups, &self.masked);
        if batch.sequences.is_empty() {
            let mut rewards = groups.iter().flat_map(|g| &g.rollouts).map(|r| &r.reward);
            let example = rewards.find_map(|reward| reward.message.clone()).unwrap_or_default();
            return Err(StepError::NoRewards { example });
        }
        Ok(batch)
    }
}

fn rollout_group(prompt: &Arc<Prompt>, judged: JudgedGroup, policy_version: u64) -> RolloutGroup {
    let rollout = |(sample_idx, (completion, reward)): (usize, (Completion, Reward))| Rollout {
        prompt: Arc::clone(prompt),
        sample_idx: sample_idx as u32,
        policy_version,
        completion,
        reward,
    };
    RolloutGroup {
        prompt: Arc::clone(prompt),
        rollouts: judged.into_iter().enumerate().map(rollout).collect(),
    }
}
