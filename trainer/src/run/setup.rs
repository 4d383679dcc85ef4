//! Setup of a run: makes device, tokenizer, data, model, rewards and engine of a validated job.
//!
//! Errors of a model, its data or its rewards are found here, before the first step.

pub(crate) mod datasets;
mod device;
pub(crate) mod hub_models;
pub(crate) mod model;

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rlt_api::ValidatedJob;
use rlt_api::plan::{KV_BLOCK_TOKENS, check_device, check_model, concurrent_sequences};
use rlt_api::resolved::{
    Kl, ModelSource, ResolvedColdStart, ResolvedOptimizer, ResolvedSchedule, ResolvedSpec, TokenizerSource,
};
use rlt_api::spec;
use rlt_core::schedule::{Decay, Schedule};
use rlt_core::types::RewardStatus;
use tch::{Device, Kind};

use crate::data::seeds::{SeedUse, seed};
use crate::data::tokenizer::{ConversationDefaults, Tokenizer};
use crate::data::{Data, TrainingRows};
use crate::observe::stop::StopRequest;
use crate::parallel::{RankError, Ranks};
use crate::roles::Roles;
use crate::roles::actor::{Actor, ActorRole};
use crate::roles::critic::{CriticOptions, CriticPlan, CriticRole};
use crate::roles::learner::Portions;
use crate::roles::offload::Offload;
use crate::roles::optim::AdamWOptions;
use crate::roles::reference::{Copying, Reference, ReferenceRole, kl_controller};
use crate::roles::reward::{ExternalFunctions, PoolOptions, RewardFunctions, RewardPool, RewardsRole};
use crate::roles::rollout::{MemoryShare, RolloutEngine, RolloutOptions, RolloutRole};
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::saver::Saver;
use crate::run::saving::Saving;
use crate::run::{ModelOrigin, Progress, Run, identity};
use crate::storage::checkpoint::{CheckpointStore, RunIdentity};
use crate::storage::run_folder::RunFolder;

use datasets::{Datasets, Located, context_of, within_context};
use model::RoleMeshes;

/// The part of the seed of weights that is the critic's adapter.
const CRITIC_ADAPTER: u64 = 1;

/// Builds this rank's run of `job` in `folder`, with the recipes that `choose` makes of the manifest.
///
/// # Errors
/// [`TrainError`], which names what does not fit.
pub fn setup(
    job: ValidatedJob,
    folder: RunFolder,
    stop: StopRequest,
    ranks: Ranks,
    choose: fn(&ResolvedSpec) -> Recipes,
) -> Result<(Run, Roles, Data), TrainError> {
    let (spec, identity) = (job.spec().clone(), identity::of_job(&job)?);
    let pass_ranks = PassRanks::of(&spec, ranks)?;
    let ranks = pass_ranks.updates.of_all_places();
    let device::Placement { device, warning } = device::prepare(&spec, &ranks)?;
    // `Auto` is replaced here, because the rules below depend on the device that was found.
    let job = job.on_device(device::spec_of(device));
    let spec = job.spec().clone();
    // The leader downloads, the others use the cache.
    let (model_dir, base_model) =
        ranks.leader_first(|| hub_models::model_folder(&spec, &folder, &ranks))?.unzip();
    let tokenizer = load_tokenizer(&spec, model_dir.as_deref())?;
    let located = ranks.leader_first(|| Located::find(&spec.data, Some(folder.root())))?;
    if ranks.is_leader() {
        located.record(&folder)?;
    }
    let weights = model::weights(&spec, model_dir.as_deref(), &tokenizer)?;
    check_model(&spec, weights.config())?;
    let model_context = context_of(weights.config());
    let data = within_context(&located.spec, model_context);
    let datasets = Datasets::load(&spec, &data, &tokenizer)?;
    let data_warnings = datasets.warnings(&spec, &data, model_context);
    let rewards = reward_pool(&spec, &datasets, ranks.cores())?;
    let external = ExternalFunctions::new(&spec.rewards)?;
    let job = job.with(&device::choices(&spec, weights.config(), device, &ranks)?);
    let spec = job.spec().clone();
    let weights = weights.quantized(spec.model.quantization.as_ref(), spec.training.precision)?;
    check_device(spec.workers.device, spec.workers.mesh.ep, weights.config())?;
    device::check_room(&job, weights.config(), device)?;
    let actor = model::actor(&spec, &weights, device, &pass_ranks, &folder)?;
    actor.decoder.check_vocabulary(tokenizer.vocab_len().saturating_sub(1) as u32)?;
    let meshes = model::RoleMeshes::of(&spec, &actor)?;
    let reference = model::reference(&spec, &actor, &folder, &meshes)?;
    let folders = model::reward_model_folders(&spec, &ranks, &folder)?;
    let reward_models = model::reward_models(&spec, &folders, &tokenizer, (&actor, &meshes), &folder)?;
    let checkpoints = checkpoint_store(&spec, &identity, (&folder, &ranks))?;
    let saving = Saving::prepare(&ranks, &checkpoints)?;
    let context = StepContext::new(spec.training.seed, stop);
    let num_steps = datasets.num_steps(&spec);
    let roles = Roles {
        rollout: rollout_role(&spec, tokenizer, device, (&ranks, external), &context)?,
        rewards: RewardsRole {
            pool: rewards,
            models: reward_models,
            masked: masked_statuses(&spec.rewards),
            ranks: ranks.clone(),
            context: Rc::clone(&context),
        },
        critic: critic_role(&spec, &folder, (pass_ranks.critic, &meshes), &context),
        reference: reference_role(
            &spec,
            reference,
            model::reference_copying(&spec, &folder, &meshes),
            &context,
        ),
        actor: actor_role(&spec, actor, num_steps, &context),
        context: Rc::clone(&context),
    };
    let saver = Saver::new(ranks.clone(), checkpoints, saving, Rc::clone(&context));
    let run = Run {
        recipes: choose(&spec),
        source: ModelOrigin {
            commits: [model::commits(&spec, model_dir.as_deref(), &folders), located.commits()].concat(),
            // The sum of a model and adapters is in no other folder.
            base: base_model.filter(|_| spec.model.adapters.is_empty()),
            kind: source_kind(model_dir.as_deref()),
        },
        unquantized: roles.actor.decoder().starts_from_error().then_some(weights),
        saver: saver.committing_after_sampling(),
        num_steps,
        identity,
        job,
        folder,
        ranks,
        context,
        warning,
        data_warnings,
        data_metrics: datasets.metrics(),
        progress: Progress::default(),
        started: Instant::now(),
    };
    Ok((run, roles, datasets.in_order(&spec)?))
}

fn checkpoint_store(
    spec: &ResolvedSpec,
    identity: &RunIdentity,
    (folder, ranks): (&RunFolder, &Ranks),
) -> Result<CheckpointStore, TrainError> {
    if !ranks.is_leader() {
        return Ok(CheckpointStore::follow(&folder.checkpoints()));
    }
    let store = CheckpointStore::open(&folder.checkpoints(), spec.checkpoint.keep as usize)?;
    Ok(match &spec.checkpoint.uri {
        Some(uri) => store.copied_to(uri, identity)?,
        None => store,
    })
}

fn rollout_role(
    spec: &ResolvedSpec,
    tokenizer: Tokenizer,
    device: Device,
    (ranks, external): (&Ranks, ExternalFunctions),
    context: &Rc<StepContext>,
) -> Result<RolloutRole, TrainError> {
    let engine = RolloutEngine::new(engine_options(spec, &tokenizer, device, ranks)?);
    let engine = engine.with_tp_group(ranks.rollout_tp_group(spec.workers.mesh.rollout_tp as usize)?);
    Ok(RolloutRole::new(engine, tokenizer, spec.rollout.clone(), (ranks.clone(), external), context))
}

fn actor_role(spec: &ResolvedSpec, actor: Actor, num_steps: u64, context: &Rc<StepContext>) -> ActorRole {
    ActorRole {
        policy: actor,
        portions: portions(spec, spec.training.max_tokens_per_micro_batch),
        max_logprob_tokens: spec.training.max_logprob_tokens as usize,
        schedule: schedule(spec, num_steps),
        cold_start_schedule: spec.algorithm.cold_start.as_ref().map(cold_start_schedule),
        context: Rc::clone(context),
    }
}

fn reference_role(
    spec: &ResolvedSpec,
    reference: Reference,
    copying: Copying,
    context: &Rc<StepContext>,
) -> ReferenceRole {
    let kl = spec.algorithm.policy_gradient.as_ref().map_or(Kl::None, |algorithm| algorithm.kl.clone());
    let max_forward_tokens = spec.training.reference_forward_tokens() as usize;
    ReferenceRole {
        policy: reference,
        max_forward_tokens,
        copying,
        controller: kl_controller(&kl),
        kl,
        is_read: spec.algorithm.reads_reference(),
        kept: None,
        sync: spec.algorithm.reference_sync,
        is_own: false,
        context: Rc::clone(context),
    }
}

fn critic_role(
    spec: &ResolvedSpec,
    folder: &RunFolder,
    (ranks, meshes): (Ranks, &RoleMeshes),
    context: &Rc<StepContext>,
) -> CriticRole {
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
        portions: portions(spec, spec.training.critic_micro_batch_tokens()),
        max_forward_tokens: spec.training.critic_forward_tokens() as usize,
        context: Rc::clone(context),
    }
}

fn portions(spec: &ResolvedSpec, max_tokens: u32) -> Portions {
    Portions {
        groups_per_update: spec.training.prompts_per_update as usize,
        num_epochs: spec.training.epochs_per_batch as usize,
        max_tokens: max_tokens as usize,
    }
}

/// All ranks of this one's place in the tensor-parallel groups, as they share tokens in each kind of pass.
struct PassRanks {
    /// Updates of the actor.
    updates: Ranks,
    /// Log-probs of the actor.
    logprobs: Ranks,
    /// Log-probs of the reference.
    reference: Ranks,
    /// Values and updates of the critic.
    critic: Ranks,
}

impl PassRanks {
    fn of(spec: &ResolvedSpec, ranks: Ranks) -> Result<Self, RankError> {
        let mesh = &spec.workers.mesh;
        let ranks = ranks.with_tensor_parallel(mesh.tp as usize)?.with_expert_parallel(mesh.ep as usize);
        // One group of ranks for each degree, however many passes have it.
        let mut groups: Vec<(u32, Ranks)> = Vec::new();
        let mut sharing_by = |sp: u32| -> Result<Ranks, RankError> {
            if let Some((_, known)) = groups.iter().find(|(degree, _)| *degree == sp) {
                return Ok(known.clone());
            }
            let sharing = ranks.clone().with_sequence_parallel(sp as usize)?;
            groups.push((sp, sharing.clone()));
            Ok(sharing)
        };
        Ok(Self {
            updates: sharing_by(mesh.sp)?,
            logprobs: sharing_by(mesh.sp_of_logprobs())?,
            reference: sharing_by(mesh.sp_of_reference())?,
            critic: sharing_by(mesh.sp_of_critic())?,
        })
    }

    /// Returns the ranks of every different degree once, with the field that asks for it.
    fn of_different_degrees(&self) -> impl Iterator<Item = (&Ranks, &'static str)> {
        let all = [
            (&self.updates, "spec.workers.mesh.sp"),
            (&self.logprobs, "spec.workers.mesh.logprobSp"),
            (&self.reference, "spec.workers.mesh.referenceSp"),
            (&self.critic, "spec.workers.mesh.criticSp"),
        ];
        let degree = |(ranks, _): &(&Ranks, &str)| ranks.sp_shard().num_shards;
        let is_first = move |at: usize| all[..at].iter().all(|before| degree(before) != degree(&all[at]));
        all.into_iter().enumerate().filter_map(move |(at, one)| is_first(at).then_some(one))
    }
}

/// Numbers in which the model's folder keeps its weights; fp32 for a new model.
pub(crate) fn source_kind(model_dir: Option<&Path>) -> Kind {
    let config = model_dir.and_then(|dir| std::fs::read_to_string(dir.join("config.json")).ok());
    let config: serde_json::Value =
        config.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    // transformers 5 says `dtype`, its predecessors `torch_dtype`.
    match config["dtype"].as_str().or(config["torch_dtype"].as_str()) {
        Some("bfloat16") => Kind::BFloat16,
        Some("float16") => Kind::Half,
        _ => Kind::Float,
    }
}

/// The tokenizer of a job, whose model is in `model_dir`, with the job's settings of conversations.
///
/// # Errors
/// [`TrainError::Tokenizer`], [`TrainError::NoTokenizer`].
pub(crate) fn load_tokenizer(spec: &ResolvedSpec, model_dir: Option<&Path>) -> Result<Tokenizer, TrainError> {
    let new_tower = match &spec.model.source {
        ModelSource::Architecture(architecture) => architecture.vision.as_ref(),
        ModelSource::Path(_) | ModelSource::Hub(_) => None,
    };
    let tokenizer = match (&spec.model.tokenizer, model_dir) {
        (Some(TokenizerSource::Characters(alphabet)), _) => match new_tower {
            None => Tokenizer::characters(alphabet)?,
            Some(_) => Tokenizer::characters_and_images(alphabet)?,
        },
        (Some(TokenizerSource::Path(path)), _) => Tokenizer::load(path.as_ref())?,
        (None, Some(dir)) => Tokenizer::load(dir)?,
        (None, None) => return Err(TrainError::NoTokenizer),
    };
    let tokenizer = match new_tower {
        Some(tower) => tokenizer.with_new_tower(tower)?,
        None => tokenizer,
    };
    let tokenizer = match &spec.model.chat_template {
        Some(template) => tokenizer.with_chat_template(template)?,
        None => tokenizer,
    };
    let variables = spec.data.template_variables.as_ref().and_then(|variables| variables.as_object());
    Ok(tokenizer.with_conversation_defaults(ConversationDefaults {
        system_prompt: spec.data.system_prompt.clone(),
        variables: variables.cloned().unwrap_or_default(),
    }))
}

fn reward_pool(spec: &ResolvedSpec, data: &Datasets, cores: usize) -> Result<RewardPool, TrainError> {
    let functions = RewardFunctions::new(&spec.rewards, spec.rollout.max_completion_tokens as usize)?;
    if !spec.rewards.functions.is_empty() {
        // Those of a stream are checked when they are read.
        let in_memory = data.prompts.as_ref().and_then(TrainingRows::in_memory);
        in_memory.map_or(Ok(()), |prompts| functions.check(prompts))?;
        functions.check(&data.held_out)?;
    }
    let num_workers = spec.workers.threads.map_or(cores, |threads| threads as usize);
    let timeout = Duration::from_secs_f64(spec.rewards.timeout_seconds);
    Ok(RewardPool::new(functions, PoolOptions { num_workers, timeout }))
}

/// The statuses that are masked from the loss.
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
) -> Result<RolloutOptions, TrainError> {
    let rollout = &spec.rollout;
    Ok(RolloutOptions {
        max_concurrent: concurrent_sequences(spec) as usize,
        block_size: KV_BLOCK_TOKENS as usize,
        compute: rollout.precision.map(model::kind_of),
        max_model_len: rollout.max_model_tokens.map(|longest| longest as usize),
        memory: Some(MemoryShare::of(device, rollout.memory_fraction, ranks.local_size())?),
        max_prefill_tokens: rollout.max_batched_tokens as usize,
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

/// The learning rate rises over a tenth of the steps and then stays.
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

/// The optimizer's constants, the same for every role.
pub(crate) fn optimizer_options(spec: &ResolvedSpec) -> AdamWOptions {
    let ResolvedOptimizer { betas, weight_decay, .. } = &spec.training.optimizer;
    let lora_b_ratio = spec.model.lora.as_ref().map_or(1.0, |lora| lora.learning_rate_ratio);
    AdamWOptions {
        betas: (betas[0], betas[1]),
        weight_decay: *weight_decay,
        lora_b_ratio,
        ..AdamWOptions::default()
    }
}
