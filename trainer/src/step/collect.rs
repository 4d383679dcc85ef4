//! Rollout groups for one step: sample, judge, and with dynamic sampling sample anew.
//!
//! Advantages and losses are not known here.

use std::ops::ControlFlow;
use std::sync::Arc;

use rlt_api::spec::{DynamicSamplingMetric, DynamicSamplingSpec, RewardErrorPolicy};
use rlt_core::advantage::EstimatorInput;
use rlt_core::batch::Batch;
use rlt_core::dapo::keeps_group;
use rlt_core::metrics::Metrics;
use rlt_core::sampling::SamplingParams;
use rlt_core::slice::Dealing;
use rlt_core::types::{Completion, Prompt, Reward, Rollout, RolloutGroup};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::phases::PhaseClock;
use crate::rollout::{RolloutError, RolloutProgress, RolloutRequest, RolloutStats};
use crate::tracking::console::Phase;
use crate::trainer::{SeedStream, Trainer};

/// What was sampled for a step.
#[derive(Debug)]
pub(super) struct Collected {
    /// The groups to learn from.
    pub groups: Vec<RolloutGroup>,
    /// Reward of the greedy completion of each group's prompt; for ReMax alone.
    pub greedy_rewards: Option<Vec<f64>>,
    /// Batches that were sampled; more than 1 with dynamic sampling.
    pub num_batches: u32,
    /// What it cost the engines of all ranks.
    pub cost: SamplingCost,
}

impl Collected {
    /// The groups as a batch, without samples whose reward can not be trusted where those are masked.
    pub(super) fn batch(&self, trainer: &Trainer) -> Result<Batch, TrainError> {
        let mask_failed = trainer.spec().rewards.on_error == RewardErrorPolicy::Mask;
        let batch = Batch::from_groups(&self.groups, mask_failed);
        if batch.sequences.is_empty() {
            let mut rewards = self.groups.iter().flat_map(|g| &g.rollouts).map(|r| &r.reward);
            let example = rewards.find_map(|reward| reward.message.clone()).unwrap_or_default();
            return Err(TrainError::NoRewards { example });
        }
        Ok(batch)
    }
}

/// Samples the groups of the present step; `None` when it was asked to stop.
pub(super) fn groups(trainer: &mut Trainer, clock: &mut PhaseClock) -> Result<Option<Collected>, TrainError> {
    let dynamic = trainer.algorithm()?.dynamic_sampling.clone();
    let num_wanted = trainer.spec().training.prompts_per_step as usize;
    let max_batches = dynamic.as_ref().map_or(1, |dynamic| dynamic.max_batches);
    clock.measure("update_weights", || trainer.sync_weights())?;
    let mut groups: Vec<RolloutGroup> = Vec::new();
    let (mut num_batches, mut cost) = (0, SamplingCost::default());
    while groups.len() < num_wanted && num_batches < max_batches {
        let Some(sampled) = sample_batch(trainer, num_wanted, u64::from(num_batches), clock)? else {
            return Ok(None);
        };
        num_batches += 1;
        cost.add(sampled.cost);
        let sampled = sampled.groups;
        let is_last = num_batches == max_batches;
        match &dynamic {
            Some(dynamic) if !(is_last && groups.is_empty()) => {
                groups.extend(sampled.into_iter().filter(|group| teaches_something(group, dynamic)));
            }
            // Without dynamic sampling, or where no group of any batch differs: the step goes on with what it
            // has.
            _ => groups.extend(sampled),
        }
    }
    groups.truncate(num_wanted);
    let greedy_rewards = greedy_rewards(trainer, &groups, clock)?;
    trainer.end_rollout();
    Ok(Some(Collected { groups, greedy_rewards, num_batches, cost }))
}

fn teaches_something(group: &RolloutGroup, dynamic: &DynamicSamplingSpec) -> bool {
    let value = |rollout: &Rollout| match dynamic.metric {
        DynamicSamplingMetric::Reward => rollout.reward.value,
        DynamicSamplingMetric::Score => rollout.reward.score,
    };
    keeps_group(&group.rollouts.iter().map(value).collect::<Vec<_>>())
}

fn sample_batch(
    trainer: &mut Trainer,
    num_prompts: usize,
    batch_idx: u64,
    clock: &mut PhaseClock,
) -> Result<Option<Sampled>, TrainError> {
    let Some(loader) = trainer.prompts.as_mut() else { return Err(TrainError::NoPolicyGradient) };
    let prompts = loader.next_prompts(num_prompts);
    let rollout = &trainer.spec().rollout;
    let (num_samples, sampling) = (rollout.samples_per_prompt, training_sampling(trainer));
    let stream = [trainer.progress.step, batch_idx];
    let request = Sampling { phase: Phase::Rollout, stream: SeedStream::Rollout, sampling, num_samples };
    sample_groups(trainer, &prompts, &request, &stream, clock)
}

/// How a set of prompts is sampled.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    pub phase: Phase,
    pub stream: SeedStream,
    pub sampling: SamplingParams,
    pub num_samples: u32,
}

/// Completions of a set of prompts.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub groups: Vec<RolloutGroup>,
    pub cost: SamplingCost,
}

/// What sampling cost the engines of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SamplingCost {
    /// Sequences that found no room in the cache and were computed again.
    pub num_preemptions: u64,
    /// The largest of the caches.
    pub cache_bytes: u64,
}

impl SamplingCost {
    fn of(stats: RolloutStats) -> Self {
        Self { num_preemptions: stats.num_preemptions as u64, cache_bytes: stats.cache_bytes as u64 }
    }

    fn add(&mut self, other: Self) {
        self.num_preemptions += other.num_preemptions;
        self.cache_bytes = self.cache_bytes.max(other.cache_bytes);
    }

    /// `rollout/num_preemptions` and `rollout/kv_cache_gb`.
    pub(super) fn metrics(self) -> Metrics {
        Metrics::from([
            ("rollout/num_preemptions".to_owned(), self.num_preemptions as f64),
            ("rollout/kv_cache_gb".to_owned(), self.cache_bytes as f64 / f64::from(1 << 30)),
        ])
    }
}

/// Samples and judges `num_samples` completions of each prompt; `None` when a rank was asked to stop. Every
/// rank, and with it those that sample as one, takes every so many-th prompt and learns what the others have
/// made of theirs.
pub(crate) fn sample_groups(
    trainer: &mut Trainer,
    prompts: &[Arc<Prompt>],
    how: &Sampling,
    stream: &[u64],
    clock: &mut PhaseClock,
) -> Result<Option<Sampled>, TrainError> {
    let ranks = trainer.ranks.clone();
    let dealing = Dealing::new(ranks.size(), trainer.engine.num_slices());
    let own = sample_own(trainer, prompts, dealing, (how, stream), clock)?;
    let gathered = clock.measure("gather", || ranks.gather(own))?;
    let Some(by_rank) = gathered.into_iter().collect::<Option<Vec<(Vec<JudgedGroup>, SamplingCost)>>>()
    else {
        return Ok(None);
    };
    let mut cost = SamplingCost::default();
    by_rank.iter().for_each(|(_, own)| cost.add(*own));
    let mut by_rank: Vec<_> = by_rank.into_iter().map(|(groups, _)| groups.into_iter()).collect();
    let policy_version = trainer.progress.step;
    let group = |(prompt_idx, prompt): (usize, &Arc<Prompt>)| {
        let judged = by_rank[dealing.judge_of(prompt_idx)].next().unwrap_or_default();
        rollout_group(prompt, judged, policy_version)
    };
    Ok(Some(Sampled { groups: prompts.iter().enumerate().map(group).collect(), cost }))
}

/// The completions of one prompt with their rewards, as ranks tell each other.
type JudgedGroup = Vec<(Completion, Reward)>;

/// Samples what is dealt out to this rank, and judges its part of that; `None` when this rank was asked to
/// stop.
fn sample_own(
    trainer: &mut Trainer,
    prompts: &[Arc<Prompt>],
    dealing: Dealing,
    (how, stream): (&Sampling, &[u64]),
    clock: &mut PhaseClock,
) -> Result<Option<(Vec<JudgedGroup>, SamplingCost)>, TrainError> {
    let max_new_tokens = trainer.spec().rollout.max_completion_tokens as usize;
    let rank = trainer.ranks.rank();
    let own_idxs: Vec<usize> = dealing.sampled_by(rank, prompts.len()).collect();
    let requests: Vec<RolloutRequest> = own_idxs
        .iter()
        .map(|prompt_idx| RolloutRequest {
            prompt: prompts[*prompt_idx].tokens.as_slice().into(),
            seeds: seeds(trainer, how, stream, *prompt_idx as u64),
            sampling: how.sampling.clone(),
            max_new_tokens,
        })
        .collect();
    trainer.watch.begin_phase(how.phase, (own_idxs.len() * how.num_samples as usize) as u64);
    let completions = clock.measure("gen", || generate(trainer, &requests))?;
    // Ranks that share a reward model judge together or not at all.
    let is_shared = trainer.reward_models.are_shared();
    let is_cut_short = is_shared && trainer.ranks.max(completions.is_none().into())? > 0;
    let Some(completions) = completions.filter(|_| !is_cut_short) else { return Ok(None) };
    let sampled = own_idxs.into_iter().zip(completions);
    let judged_here = sampled.filter(|(prompt_idx, _)| dealing.judge_of(*prompt_idx) == rank);
    let own = judged_here.map(|(prompt_idx, group)| (Arc::clone(&prompts[prompt_idx]), group)).collect();
    // Those that sample as one preempt alike: one of them tells.
    let is_counted = rank.is_multiple_of(trainer.engine.num_slices());
    let cost = if is_counted { SamplingCost::of(trainer.engine.stats()) } else { SamplingCost::default() };
    Ok(Some((clock.measure("reward", || judge(trainer, own))?, cost)))
}

fn seeds(trainer: &Trainer, how: &Sampling, stream: &[u64], prompt_idx: u64) -> Vec<u64> {
    let seed = |sample_idx: u32| {
        let parts = [stream, &[prompt_idx, u64::from(sample_idx)]].concat();
        trainer.seed(how.stream, &parts)
    };
    (0..how.num_samples).map(seed).collect()
}

fn generate(
    trainer: &mut Trainer,
    requests: &[RolloutRequest],
) -> Result<Option<Vec<Vec<Completion>>>, TrainError> {
    let Trainer { engine, actor, tokenizer, watch, stop, .. } = trainer;
    let mut progress = |progress: RolloutProgress| {
        watch.advance(progress.num_finished as u64, progress.num_tokens as u64);
        if stop.reason().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    match engine.generate(actor.parts(), requests, tokenizer, &mut progress) {
        Ok(completions) => Ok(Some(completions)),
        Err(RolloutError::Interrupted) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn judge(
    trainer: &mut Trainer,
    sampled: Vec<(Arc<Prompt>, Vec<Completion>)>,
) -> Result<Vec<JudgedGroup>, TrainError> {
    let lens: Vec<usize> = sampled.iter().map(|(_, group)| group.len()).collect();
    let samples: Vec<(Arc<Prompt>, Completion)> = sampled
        .into_iter()
        .flat_map(|(prompt, group)| {
            group.into_iter().map(move |completion| (Arc::clone(&prompt), completion))
        })
        .collect();
    let of_models = trainer.reward_models.scores(&samples)?;
    let judged = samples.iter().map(|(prompt, completion)| (prompt, completion)).zip(of_models);
    let rewards: Vec<Reward> = trainer.rewards.score(judged);
    let mut judged = samples.into_iter().map(|(_, completion)| completion).zip(rewards);
    Ok(lens.into_iter().map(|len| judged.by_ref().take(len).collect()).collect())
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

/// The greedy completions' rewards, where the estimator wants them.
fn greedy_rewards(
    trainer: &mut Trainer,
    groups: &[RolloutGroup],
    clock: &mut PhaseClock,
) -> Result<Option<Vec<f64>>, TrainError> {
    if !trainer.algorithm()?.advantage.reads(EstimatorInput::GreedyRewards) {
        return Ok(None);
    }
    let prompts: Vec<Arc<Prompt>> = groups.iter().map(|group| Arc::clone(&group.prompt)).collect();
    let sampling = SamplingParams { temperature: 0.0, ..training_sampling(trainer) };
    let how = Sampling { phase: Phase::Rollout, stream: SeedStream::Rollout, sampling, num_samples: 1 };
    let stream = [trainer.progress.step, u64::MAX];
    let greedy = sample_groups(trainer, &prompts, &how, &stream, clock)?;
    Ok(greedy.map(|greedy| greedy.groups.iter().map(|group| group.rollouts[0].reward.value).collect()))
}

/// The sampling parameters of the training.
pub(crate) fn training_sampling(trainer: &Trainer) -> SamplingParams {
    let rollout = &trainer.spec().rollout;
    SamplingParams {
        temperature: rollout.temperature,
        top_p: rollout.top_p,
        top_k: (rollout.top_k > 0).then_some(rollout.top_k as usize),
        min_p: rollout.min_p,
        repetition_penalty: rollout.repetition_penalty,
        stop: rollout.stop.clone(),
        stop_token_ids: rollout.stop_token_ids.clone(),
        ignore_eos: rollout.ignore_eos,
    }
}
