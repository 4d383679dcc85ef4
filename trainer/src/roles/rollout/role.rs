//! The rollout role: samples completions of prompts and returns those that this rank judges.
//!
//! Prompts are assigned to tensor-parallel groups, whose ranks sample them together. The rewards role gathers
//! the judged samples of all ranks.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use rlt_api::ExitCode;
use rlt_api::spec::RolloutSpec;
use rlt_core::engine::SequenceId;
use rlt_core::metrics::Metrics;
use rlt_core::sampling::SamplingParams;
use rlt_core::tensor_parallel::SampleAssignment;
use rlt_core::types::{Completion, Prompt};
use rlt_data::seeds::SeedUse;
use rlt_data::tokenizer::Tokenizer;
use rlt_engine::{Engine, EngineError, Request, RolloutProgress, RolloutStats};
use rlt_parallel::Ranks;

use super::routes;
use crate::observe::phases::{gib, memory};
use crate::observe::tracking::console::Phase;
use crate::roles::actor::ActorRole;
use crate::roles::error::{StepError, StepFault};
use crate::roles::reward::{ExternalFunctions, SampleId, Sampled, SamplingCost};
use crate::roles::step_context::StepContext;

impl StepFault for EngineError {
    fn act(&self) -> &'static str {
        "failed to generate"
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::CacheTooSmall { .. } => ExitCode::BadConfig,
            Self::NonFiniteLogits { .. } => ExitCode::Diverged,
            _ => ExitCode::Failure,
        }
    }
}

/// Role that samples completions with the actor's weights.
pub struct RolloutRole {
    /// Rollout engine, shared with the hook that frees its memory when sampling ends.
    engine: Rc<RefCell<Engine>>,
    pub(crate) tokenizer: Tokenizer,
    spec: RolloutSpec,
    ranks: Ranks,
    /// External reward functions, which judge completions while others are still being sampled.
    external: ExternalFunctions,
    context: Rc<StepContext>,
    /// Policy version that sampled the last batch.
    last_version: u64,
    /// Number of batches that this policy version has sampled.
    num_batches: u64,
}

/// Sampling parameters of a set of prompts.
#[derive(Clone, Debug)]
struct SamplingPlan {
    phase: Phase,
    usage: SeedUse,
    /// Numbers that precede the indices of prompt and sample in the derivation of each sample's seed.
    seed_parts: Vec<u64>,
    params: SamplingParams,
    num_samples: u32,
}

/// Returns the cost of the last batch that an engine has sampled.
fn cost_of(stats: RolloutStats) -> SamplingCost {
    SamplingCost { num_preemptions: stats.num_preemptions as u64, cache_bytes: stats.cache_bytes as u64 }
}

impl RolloutRole {
    /// Creates the role of `engine`, which frees its memory when sampling ends.
    pub(crate) fn new(
        engine: Engine,
        tokenizer: Tokenizer,
        spec: RolloutSpec,
        ranks: Ranks,
        external: ExternalFunctions,
        context: &Rc<StepContext>,
    ) -> Self {
        let engine = Rc::new(RefCell::new(engine));
        let sleeping = Rc::clone(&engine);
        context.when_sampling_ends(move || {
            sleeping.borrow_mut().sleep();
            Ok(())
        });
        let context = Rc::clone(context);
        Self { engine, tokenizer, spec, ranks, external, context, last_version: 0, num_batches: 0 }
    }

    /// Samples a group of completions for each prompt, with the settings of `spec.rollout`. A second call in
    /// the same step returns different samples.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn sample(&mut self, actor: &ActorRole, prompts: &[Arc<Prompt>]) -> Result<Sampled, StepError> {
        let step = self.context.policy_version();
        let batch_idx = if self.last_version == step { self.num_batches } else { 0 };
        (self.last_version, self.num_batches) = (step, batch_idx + 1);
        let plan = SamplingPlan {
            phase: Phase::Rollout,
            usage: SeedUse::Rollout,
            seed_parts: vec![step, batch_idx],
            params: self.params(self.spec.temperature),
            num_samples: self.spec.samples_per_prompt,
        };
        self.sample_by(actor, prompts, &plan)
    }

    /// Returns the greedy completion of each prompt.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn sample_greedy(
        &mut self,
        actor: &ActorRole,
        prompts: &[Arc<Prompt>],
    ) -> Result<Sampled, StepError> {
        let plan = SamplingPlan {
            phase: Phase::Rollout,
            usage: SeedUse::Rollout,
            seed_parts: vec![self.context.policy_version(), u64::MAX],
            params: self.params(0.0),
            num_samples: 1,
        };
        self.sample_by(actor, prompts, &plan)
    }

    /// Samples held-out prompts with the settings of `spec.rollout.heldOut`. Every evaluation uses the same
    /// seeds, so that two evaluations differ only by the weights.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn sample_held_out(
        &mut self,
        actor: &ActorRole,
        prompts: &[Arc<Prompt>],
    ) -> Result<Sampled, StepError> {
        let plan = SamplingPlan {
            phase: Phase::Evaluation,
            usage: SeedUse::Evaluation,
            seed_parts: Vec::new(),
            params: self.params(self.spec.held_out.temperature),
            num_samples: self.spec.held_out.samples_per_prompt,
        };
        self.sample_by(actor, prompts, &plan)
    }

    /// Frees packed weights and cache.
    pub(crate) fn sleep(&self) {
        self.engine.borrow_mut().sleep();
    }

    /// Frees the cache and keeps the packed weights for the next sampling under the same policy. If another
    /// role computes before that, the weights are freed, too.
    pub(crate) fn free_cache(&self) {
        self.engine.borrow_mut().free_cache();
    }

    /// Returns the number of weight syncs so far.
    pub fn num_weight_syncs(&self) -> u64 {
        self.engine.borrow().num_syncs()
    }

    fn params(&self, temperature: f64) -> SamplingParams {
        let rollout = &self.spec;
        SamplingParams {
            temperature,
            top_p: rollout.top_p,
            top_k: (rollout.top_k > 0).then_some(rollout.top_k as usize),
            min_p: rollout.min_p,
            repetition_penalty: rollout.repetition_penalty,
            stop: rollout.stop.clone(),
            stop_token_ids: rollout.stop_token_ids.clone(),
            ignore_eos: rollout.ignore_eos,
        }
    }

    fn sample_by(
        &mut self,
        actor: &ActorRole,
        prompts: &[Arc<Prompt>],
        plan: &SamplingPlan,
    ) -> Result<Sampled, StepError> {
        let policy_version = self.context.policy_version();
        self.context.begin_sampling();
        self.context.measure("update_weights", || self.sync_weights(actor, policy_version))?;
        let rank = self.ranks.rank();
        let num_shards = self.engine.borrow().num_shards();
        let assignment = SampleAssignment::new(self.ranks.size(), num_shards);
        let own_idxs: Vec<usize> = assignment.sampled_by(rank, prompts.len()).collect();
        let requests: Vec<Request> =
            own_idxs.iter().map(|idx| self.request(plan, *idx, &prompts[*idx])).collect();
        let num_samples = own_idxs.len() * plan.num_samples as usize;
        self.context.watch().begin_phase(plan.phase, num_samples as u64);
        let mut pending_rewards = self.external.begin();
        let mut submit = |SequenceId { request_idx, sample_idx }: SequenceId, completion: &Completion| {
            let prompt_idx = own_idxs[request_idx];
            if let Some(pending_rewards) =
                pending_rewards.as_mut().filter(|_| assignment.judge_of(prompt_idx) == rank)
            {
                let id = SampleId { prompt_idx, sample_idx };
                pending_rewards.submit(id, &prompts[prompt_idx], completion);
            }
        };
        let completions = self.context.measure("gen", || self.generate(actor, &requests, &mut submit))?;
        if plan.phase == Phase::Rollout {
            let synced = gib(self.engine.borrow().synced_bytes() as u64);
            self.context.record(Metrics::from([("perf/weight_sync_gb".to_owned(), synced)]));
            let num_failed_captures = self.engine.borrow().num_failed_captures();
            if num_failed_captures > 0 {
                let name = "rollout/num_failed_graph_captures".to_owned();
                self.context.record(Metrics::from([(name, num_failed_captures as f64)]));
            }
            self.exchange_routes(actor, &requests, completions.as_deref().unwrap_or_default())?;
        }
        let local_groups = completions.map(|completions| {
            let sampled = own_idxs.into_iter().zip(completions);
            sampled.filter(|(prompt_idx, _)| assignment.judge_of(*prompt_idx) == rank).collect()
        });
        // All ranks of a tensor-parallel group preempt the same sequences, so only one of them counts.
        let is_counted = rank.is_multiple_of(num_shards);
        let cost = if is_counted { cost_of(self.engine.borrow().stats()) } else { SamplingCost::default() };
        Ok(Sampled {
            prompts: prompts.to_vec(),
            local_groups,
            pending_rewards,
            assignment,
            policy_version,
            cost,
        })
    }

    /// Exchanges the routers' choices for the first completion of each request. The actor compares its own
    /// choices with them.
    fn exchange_routes(
        &self,
        actor: &ActorRole,
        requests: &[Request],
        completions: &[Vec<Completion>],
    ) -> Result<(), StepError> {
        if actor.decoder().config.experts.is_none() {
            return Ok(());
        }
        let mut engine = self.engine.borrow_mut();
        // All ranks of a tensor-parallel group have the same choices, so only one of them sends.
        let tells = self.ranks.rank().is_multiple_of(engine.num_shards());
        let own =
            if tells { routes::logged(requests, completions, engine.take_routes()) } else { Vec::new() };
        self.context.record_routes(routes::all_gather(&self.ranks, own)?.into_iter());
        Ok(())
    }

    /// Packs the actor's weights of `policy_version` unless the engine has them. Collective if the model is
    /// sharded.
    fn sync_weights(&self, actor: &ActorRole, policy_version: u64) -> Result<(), EngineError> {
        let mut engine = self.engine.borrow_mut();
        if engine.policy_version() != Some(policy_version) {
            memory::during("update_weights", || engine.sync_weights(actor.units(), policy_version))?;
        }
        Ok(())
    }

    fn request(&self, plan: &SamplingPlan, prompt_idx: usize, prompt: &Prompt) -> Request {
        let seed = |sample_idx: u32| {
            let parts = [plan.seed_parts.as_slice(), &[prompt_idx as u64, u64::from(sample_idx)]].concat();
            self.context.seed(plan.usage, &parts)
        };
        Request {
            prompt: prompt.tokens.as_slice().into(),
            images: prompt.images.clone(),
            seeds: (0..plan.num_samples).map(seed).collect(),
            sampling: plan.params.clone(),
            max_new_tokens: self.spec.max_completion_tokens as usize,
        }
    }

    /// Samples the completions of all requests; `None` if this rank was asked to stop.
    fn generate(
        &self,
        actor: &ActorRole,
        requests: &[Request],
        on_finish: &mut dyn FnMut(SequenceId, &Completion),
    ) -> Result<Option<Vec<Vec<Completion>>>, EngineError> {
        let mut progress = |progress: RolloutProgress| {
            self.context.watch().advance(progress.num_finished as u64, progress.num_tokens as u64);
            if self.context.stop_reason().is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut engine = self.engine.borrow_mut();
        match engine.generate_streaming(actor.units(), requests, &self.tokenizer, &mut progress, on_finish) {
            Ok(completions) => Ok(Some(completions)),
            Err(EngineError::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
