//! A full GRPO step on random tokens with random rewards: rollout, log-probs of the reference, one update.
//! Benchmarks and `gpu-check` measure it, and peers do the same work.

use std::ops::ControlFlow;
use std::sync::Arc;

use rlt_core::advantage::{AdvantageEstimator, AdvantageInputs, Grpo};
use rlt_core::batch::{Batch, Demonstration};
use rlt_core::engine::DetokenizeError;
use rlt_core::kl::KlEstimator;
use rlt_core::loss::{Aggregation, KlTerm, Objective, Vanilla};
use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::{Completion, Prompt, Reward, RewardStatus, Rollout, RolloutGroup, TokenId};
use rlt_decoder::Adapter;
use rlt_engine::{Detokenizer, Engine, EngineOptions, Request};

use super::Failure;
use crate::commands::measure::wait;
use crate::observe::phases::PhaseClock;
use crate::roles::actor::Actor;
use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::reference::FrozenPolicy;

/// A detokenizer that returns empty texts: random tokens need none.
#[derive(Clone, Copy, Debug)]
pub struct NoText;

impl Detokenizer for NoText {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

/// Sizes of a step. A KL term with coefficient 0.04 regularizes the actor towards its reference.
#[derive(Clone, Copy, Debug)]
pub struct GrpoLoad {
    /// Number of prompts per step.
    pub num_prompts: usize,
    /// Number of samples per prompt.
    pub samples_per_prompt: usize,
    /// Number of tokens of each prompt.
    pub prompt_len: usize,
    /// Number of new tokens of each sample, exactly.
    pub new_tokens: usize,
    /// Maximum number of tokens of a micro-batch.
    pub max_tokens: usize,
}

/// Sizes and times of a step's phases.
#[derive(Clone, Copy, Debug)]
pub struct GrpoTimes {
    /// Number of tokens of all samples, each with its prompt.
    pub num_tokens: usize,
    /// Number of sampled tokens.
    pub num_new_tokens: usize,
    /// Number of tokens in a forward pass over the batch; each prompt is computed once.
    pub num_computed_tokens: usize,
    /// Time of the weight sync and of sampling.
    pub rollout_seconds: f64,
    /// Time of the reference's log-probs.
    pub reference_seconds: f64,
    /// Time of forward and backward passes, and of the optimizer.
    pub update_seconds: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: Option<f64>,
}

impl GrpoTimes {
    /// Returns the time of the full step, in seconds.
    pub fn seconds(&self) -> f64 {
        self.rollout_seconds + self.reference_seconds + self.update_seconds
    }
}

/// An actor, its reference and its rollout engine, which repeat the same step.
#[derive(Debug)]
pub struct GrpoWorkload {
    actor: Actor,
    /// Frozen copy of all weights; `None` for an adapter, whose reference is its base.
    reference: Option<FrozenPolicy>,
    engine: Engine,
    load: GrpoLoad,
    step: u64,
}

impl GrpoWorkload {
    /// Creates the workload of `actor` with `reference`, or with the actor's base as the reference.
    pub fn new(actor: Actor, reference: Option<FrozenPolicy>, load: GrpoLoad) -> Self {
        let max_num_seqs = load.num_prompts * load.samples_per_prompt;
        let engine = Engine::new(EngineOptions { max_num_seqs, ..EngineOptions::default() });
        Self { actor, reference, engine, load, step: 0 }
    }

    /// Runs one step: weight sync, sampling, log-probs of the reference, advantages, and the update.
    ///
    /// # Errors
    /// The error of the first phase that fails.
    pub fn step(&mut self) -> Result<GrpoTimes, Failure> {
        let mut clock = PhaseClock::start();
        clock.measure("update_weights", || {
            self.engine.sync_weights(self.actor.learner.decoder(), self.step)
        })?;
        let groups = clock.measure("gen", || self.sample())?;
        self.engine.sleep();
        let mut batch = Batch::from_groups(&groups, &[RewardStatus::Timeout, RewardStatus::Infra]);
        batch.ref_logprobs = Some(clock.measure("ref", || self.reference_logprobs(&batch))?);
        let token_rewards = batch.rows.at_last_valid(&batch.rewards);
        let inputs = AdvantageInputs::new(&batch.rows, &token_rewards, &batch.groups);
        batch.advantages =
            AdvantageEstimator::from(Grpo { normalize_by_std: true }).estimate(&inputs)?.advantages;
        let report = clock.measure("update_actor", || self.update(&batch))?;
        self.step += 1;
        Ok(GrpoTimes {
            num_tokens: batch.sequence_lens().iter().sum(),
            num_new_tokens: batch.rows.num_tokens(),
            num_computed_tokens: computed_tokens(&batch),
            rollout_seconds: clock.seconds("update_weights") + clock.seconds("gen"),
            reference_seconds: clock.seconds("ref"),
            update_seconds: clock.seconds("update_actor"),
            grad_norm: report,
        })
    }

    fn sample(&mut self) -> Result<Vec<RolloutGroup>, Failure> {
        let load = self.load;
        let prompts: Vec<Arc<Prompt>> = (0..load.num_prompts as u64).map(|idx| self.prompt(idx)).collect();
        let seeds = |row_idx| -> Vec<u64> {
            let of_sample = |sample| derive_seed(&[self.step, row_idx, sample]);
            (0..load.samples_per_prompt as u64).map(of_sample).collect()
        };
        let request = |prompt: &Arc<Prompt>| Request {
            images: Vec::new(),
            prompt: prompt.tokens.as_slice().into(),
            seeds: seeds(prompt.row_idx),
            sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
            max_new_tokens: load.new_tokens,
        };
        let requests: Vec<Request> = prompts.iter().map(request).collect();
        let go_on = &mut |_| ControlFlow::Continue(());
        let completions = self.engine.generate(self.actor.learner.decoder(), &requests, &NoText, go_on)?;
        Ok(prompts.into_iter().zip(completions).map(|(prompt, own)| self.group(prompt, own)).collect())
    }

    fn prompt(&self, prompt_idx: u64) -> Arc<Prompt> {
        let seed = derive_seed(&[self.step, prompt_idx]);
        Arc::new(Prompt::from_tokens(
            prompt_idx,
            random_tokens(seed, self.load.prompt_len, self.actor.learner.decoder().config.vocab_size),
        ))
    }

    fn group(&self, prompt: Arc<Prompt>, completions: Vec<Completion>) -> RolloutGroup {
        let rollout = |(sample_idx, completion)| {
            let value = draw(derive_seed(&[self.step, prompt.row_idx]), sample_idx as u64);
            Rollout {
                prompt: Arc::clone(&prompt),
                sample_idx: sample_idx as u32,
                policy_version: self.step,
                completion,
                reward: Reward::from_score(value),
            }
        };
        let rollouts = completions.into_iter().enumerate().map(rollout).collect();
        RolloutGroup { prompt, rollouts }
    }

    fn reference_logprobs(&self, batch: &Batch) -> Result<Vec<f64>, Failure> {
        let max_tokens = 2 * self.load.max_tokens;
        let scores = match &self.reference {
            Some(copy) => copy.score(&self.actor, batch, max_tokens),
            None => self.actor.score(batch, Adapter::Off, max_tokens),
        };
        if let Some(copy) = &self.reference {
            copy.release_pages();
        }
        Ok(scores?.logprobs)
    }

    /// Runs the update and waits until the device has finished it; returns the gradient's norm.
    fn update(&mut self, batch: &Batch) -> Result<Option<f64>, Failure> {
        let plan = UpdatePlan {
            objective: Objective {
                policy: Vanilla { clip_low: 0.2, clip_high: 0.2, dual_clip: None }.into(),
                aggregation: Aggregation::TokenMean,
                kl: Some(KlTerm { estimator: KlEstimator::K3, coefficient: 0.04 }),
                entropy_coefficient: 0.0,
                positive: None,
            },
            groups_per_update: self.load.num_prompts,
            num_epochs: 1,
            max_tokens: self.load.max_tokens,
            learning_rate: 1e-6,
            seed: self.step,
        };
        let report = update(&mut self.actor, batch, &plan)?;
        wait(self.actor.learner.decoder().device());
        Ok(report.updates.grad_norms.first().copied())
    }
}

/// Returns the number of tokens in a forward pass over the batch; each prompt is computed once.
fn computed_tokens(batch: &Batch) -> usize {
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    batch.prompt_groups(&rows).iter().map(|group| group.prompt_len + group.lens.iter().sum::<usize>()).sum()
}

fn random_tokens(seed: u64, len: usize, vocab_size: usize) -> Vec<TokenId> {
    (0..len as u64).map(|at| (draw(seed, at) * vocab_size as f64) as TokenId).collect()
}

/// Creates sequences of `lens` random tokens; all but the first token of each are learned.
pub fn random_demonstrations(lens: &[usize], vocab_size: usize) -> Batch {
    let demonstration = |(row_idx, &len): (usize, &usize)| Demonstration {
        tokens: random_tokens(row_idx as u64, len, vocab_size),
        loss_mask: (0..len).map(|at| at > 0).collect(),
        images: Vec::new(),
    };
    let demonstrations: Vec<Demonstration> = lens.iter().enumerate().map(demonstration).collect();
    Batch::from_demonstrations(&demonstrations)
}
