//! Creates the roles of a run from the manifest's settings.

use std::rc::Rc;

use rlt_api::resolved::{Kl, ResolvedColdStart, ResolvedSchedule, ResolvedSpec};
use rlt_api::spec;
use rlt_core::schedule::{Decay, Schedule};
use rlt_core::types::RewardStatus;
use rlt_data::seeds::{SeedUse, seed};
use rlt_data::tokenizer::Tokenizer;
use rlt_engine::{Engine, EngineOptions, MemoryShare};
use rlt_parallel::Ranks;
use rlt_plan::{KV_BLOCK_TOKENS, concurrent_sequences};
use rlt_storage::run_folder::RunFolder;
use tch::Device;

use super::model::{self, RoleMeshes};
use super::optimizer_options;
use crate::roles::actor::{Actor, ActorRole};
use crate::roles::critic::{CriticOptions, CriticPlan, CriticRole};
use crate::roles::learner::MiniBatches;
use crate::roles::offload::Offload;
use crate::roles::reference::{Reference, ReferenceRole, kl_controller};
use crate::roles::reward::{ExternalFunctions, RewardModels, RewardPool, RewardsRole};
use crate::roles::rollout::RolloutRole;
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;

/// Number from which the seed of the critic's adapter is derived.
const CRITIC_ADAPTER: u64 = 1;

/// Settings and objects from which all roles of a run are created.
pub(super) struct RoleSetup<'a> {
    /// Manifest with all choices resolved.
    pub(super) spec: &'a ResolvedSpec,
    /// Run folder of the job.
    pub(super) folder: &'a RunFolder,
    /// Ranks in updates of the actor.
    pub(super) ranks: &'a Ranks,
    /// FSDP meshes of the roles other than the actor.
    pub(super) meshes: &'a RoleMeshes,
    /// Shared state of the steps, to which roles report.
    pub(super) context: &'a Rc<StepContext>,
}

impl RoleSetup<'_> {
    /// Creates the rollout role, whose engine samples on `device`.
    ///
    /// # Errors
    /// [`TrainError`] if the memory limit of the engine cannot be determined, or a rank is lost.
    pub(super) fn rollout(
        &self,
        tokenizer: Tokenizer,
        device: Device,
        external: ExternalFunctions,
    ) -> Result<RolloutRole, TrainError> {
        let Self { spec, ranks, context, .. } = *self;
        let engine = Engine::new(engine_options(spec, &tokenizer, device, ranks)?);
        let engine = engine.with_tp_group(ranks.rollout_tp_group(spec.workers.mesh.rollout_tp as usize)?);
        Ok(RolloutRole::new(engine, tokenizer, spec.rollout.clone(), ranks.clone(), external, context))
    }

    /// Creates the rewards role, which scores by the functions of `pool` and by `models`.
    pub(super) fn rewards(&self, pool: RewardPool, models: RewardModels) -> RewardsRole {
        RewardsRole {
            pool,
            models,
            masked: masked_statuses(&self.spec.rewards),
            ranks: self.ranks.clone(),
            context: Rc::clone(self.context),
        }
    }

    /// Creates the actor's role, which is trained for `num_steps` steps.
    pub(super) fn actor(&self, actor: Actor, num_steps: u64) -> ActorRole {
        let spec = self.spec;
        ActorRole {
            policy: actor,
            mini_batches: mini_batches(spec, spec.training.max_tokens_per_micro_batch),
            max_logprob_tokens: spec.training.max_logprob_tokens as usize,
            schedule: schedule(spec, num_steps),
            cold_start_schedule: spec.algorithm.cold_start.as_ref().map(cold_start_schedule),
            context: Rc::clone(self.context),
        }
    }

    /// Creates the reference's role with the KL term that reads it.
    pub(super) fn reference(&self, policy: Reference) -> ReferenceRole {
        let Self { spec, folder, meshes, .. } = *self;
        let kl = spec.algorithm.policy_gradient.as_ref().map_or(Kl::None, |algorithm| algorithm.kl.clone());
        let max_forward_tokens = spec.training.reference_forward_tokens() as usize;
        ReferenceRole {
            policy,
            max_forward_tokens,
            copy_options: model::reference_copy_options(spec, folder, meshes),
            controller: kl_controller(&kl),
            kl,
            is_read: spec.algorithm.reads_reference(),
            cache: None,
            sync: spec.algorithm.reference_sync,
            is_own: false,
            context: Rc::clone(self.context),
        }
    }

    /// Creates the critic's role, computed by `ranks` once the critic is copied from the actor.
    pub(super) fn critic(&self, ranks: Ranks) -> CriticRole {
        let Self { spec, folder, meshes, .. } = *self;
        let critic = spec.algorithm.policy_gradient.as_ref().and_then(|algorithm| algorithm.critic.clone());
        let adapter_seed = seed(spec.training.seed, SeedUse::Weights, &[CRITIC_ADAPTER]);
        let plan = critic.map(|critic| CriticPlan {
            options: CriticOptions {
                critic,
                optimizer: optimizer_options(spec),
                activation_checkpointing: spec.training.activation_checkpointing.unwrap_or(false),
                max_grad_norm: spec.training.max_grad_norm,
                offload: Offload::new(spec.training.critic_offload(), folder.root()),
                compute: Some(model::kind_of(spec.training.critic_precision())),
                mesh: meshes.critic.clone(),
            },
            lora: spec.model.lora.clone().map(|lora| (lora, adapter_seed)),
            ranks,
        });
        CriticRole {
            value_function: None,
            plan,
            mini_batches: mini_batches(spec, spec.training.critic_micro_batch_tokens()),
            max_forward_tokens: spec.training.critic_forward_tokens() as usize,
            context: Rc::clone(self.context),
        }
    }
}

fn mini_batches(spec: &ResolvedSpec, max_tokens: u32) -> MiniBatches {
    MiniBatches {
        groups_per_update: spec.training.prompts_per_update as usize,
        num_epochs: spec.training.epochs_per_batch as usize,
        max_tokens: max_tokens as usize,
    }
}

/// Returns the reward statuses whose samples are masked out of the loss.
fn masked_statuses(rewards: &spec::RewardsSpec) -> Vec<RewardStatus> {
    let policies = [(RewardStatus::Timeout, rewards.on_timeout), (RewardStatus::Infra, rewards.on_error)];
    let is_masked = |(_, policy): &(_, _)| *policy == spec::RewardErrorPolicy::Mask;
    policies.into_iter().filter(is_masked).map(|(status, _)| status).collect()
}

fn engine_options(
    spec: &ResolvedSpec,
    tokenizer: &Tokenizer,
    device: Device,
    ranks: &Ranks,
) -> Result<EngineOptions, TrainError> {
    let rollout = &spec.rollout;
    Ok(EngineOptions {
        max_num_seqs: concurrent_sequences(spec) as usize,
        block_size: KV_BLOCK_TOKENS as usize,
        compute: rollout.precision.map(model::kind_of),
        max_model_len: rollout.max_model_tokens.map(|longest| longest as usize),
        memory: Some(MemoryShare::of(device, rollout.memory_fraction, ranks.local_size())?),
        max_num_batched_tokens: rollout.max_batched_tokens as usize,
        max_cache_bytes: None,
        uses_graphs: true,
        merge_lora: spec.model.lora.as_ref().and_then(|lora| lora.merge).unwrap_or(true),
        eos_token_ids: tokenizer.eos_ids().to_vec(),
    })
}

fn schedule(spec: &ResolvedSpec, num_steps: u64) -> Schedule {
    let ResolvedSchedule { kind, warmup, min_ratio } = spec.training.schedule;
    let critic = spec.algorithm.policy_gradient.as_ref().and_then(|algorithm| algorithm.critic.as_ref());
    Schedule {
        learning_rate: spec.training.optimizer.learning_rate,
        decay: match kind {
            spec::ScheduleKind::Constant => Decay::Constant,
            spec::ScheduleKind::Cosine => Decay::Cosine,
            spec::ScheduleKind::Linear => Decay::Linear,
        },
        warmup_steps: warmup.num_steps(num_steps),
        // The actor is not trained while the critic warms up.
        first_step: critic.and_then(|critic| critic.warmup_steps).unwrap_or(0).into(),
        num_steps,
        min_ratio,
    }
}

/// Returns the learning rates of the cold start: a warm-up over a tenth of the steps, then constant.
fn cold_start_schedule(spec: &ResolvedColdStart) -> Schedule {
    Schedule {
        learning_rate: spec.learning_rate,
        decay: Decay::Constant,
        warmup_steps: u64::from(spec.steps / 10),
        first_step: 0,
        num_steps: u64::from(spec.steps),
        min_ratio: 0.0,
    }
}
