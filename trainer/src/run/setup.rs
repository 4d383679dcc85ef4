//! Setup of a run: creates device, tokenizer, data, model, rewards and engine of a validated job.
//!
//! Errors of the model, the data or the rewards are found here, before the first step.

pub(crate) mod datasets;
mod device;
pub(crate) mod hub_models;
mod inputs;
pub(crate) mod model;
mod roles;

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rlt_api::ValidatedJob;
use rlt_api::resolved::{ModelSource, ResolvedOptimizer, ResolvedSpec, TokenizerSource};
use tch::Kind;

use crate::data::tokenizer::{ConversationDefaults, Tokenizer};
use crate::data::{Data, TrainingRows};
use crate::observe::stop::StopRequest;
use crate::parallel::{RankError, Ranks};
use crate::roles::Roles;
use crate::roles::optim::AdamWOptions;
use crate::roles::reward::{ExternalFunctions, PoolOptions, RewardFunctions, RewardPool};
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::saver::Saver;
use crate::run::saving::Saving;
use crate::run::{Progress, Run, identity};
use crate::storage::checkpoint::{CheckpointStore, RunIdentity};
use crate::storage::run_folder::RunFolder;

use datasets::Datasets;
use inputs::Inputs;
use roles::RoleSetup;

/// Builds this rank's run of `job` in `folder`, with the recipes that `choose` creates from the manifest.
///
/// # Errors
/// [`TrainError`], which names the mismatch.
pub fn setup(
    job: ValidatedJob,
    folder: RunFolder,
    stop: StopRequest,
    ranks: Ranks,
    choose: fn(&ResolvedSpec) -> Recipes,
) -> Result<(Run, Roles, Data), TrainError> {
    let identity = identity::of_job(&job)?;
    let pass_ranks = PassRanks::of(job.spec(), ranks)?;
    let ranks = pass_ranks.updates.of_all_places();
    let device::Placement { device, warning } = device::prepare(job.spec(), &ranks)?;
    // `Auto` is replaced here, because the rules below depend on the device that was found.
    let job = job.on_device(device::spec_of(device));
    let inputs = Inputs::load(job.spec(), device, &folder, &ranks)?;
    let rewards = reward_pool(job.spec(), &inputs.datasets, ranks.cores())?;
    let external = ExternalFunctions::new(&job.spec().rewards)?;
    let choices = device::choices(job.spec(), inputs.weights.config(), device, &ranks)?;
    let job = job.with(&choices);
    let spec = job.spec().clone();
    let weights = inputs.weights.quantized(spec.model.quantization.as_ref(), spec.training.precision)?;
    device::check_room(&job, weights.config(), device)?;
    let actor = model::actor(&spec, &weights, device, &pass_ranks, &folder)?;
    actor.decoder.check_vocabulary(inputs.tokenizer.vocab_len().saturating_sub(1) as u32)?;
    let meshes = model::RoleMeshes::of(&spec, &actor)?;
    let reference = model::reference(&spec, &actor, &folder, &meshes)?;
    let reward_folders = model::reward_model_folders(&spec, &ranks, &folder)?;
    let reward_models =
        model::reward_models(&spec, &reward_folders, &inputs.tokenizer, &actor, &meshes, &folder)?;
    let context = StepContext::new(spec.training.seed, stop);
    let saver = saver(&spec, &identity, &folder, &ranks, &context)?;
    let num_steps = inputs.datasets.num_steps(&spec);
    let source = inputs.model.origin(&spec, &reward_folders, inputs.located.commits());
    let setup = RoleSetup { spec: &spec, folder: &folder, ranks: &ranks, meshes: &meshes, context: &context };
    let roles = Roles {
        rollout: setup.rollout(inputs.tokenizer, device, external)?,
        rewards: setup.rewards(rewards, reward_models),
        critic: setup.critic(pass_ranks.critic),
        reference: setup.reference(reference),
        actor: setup.actor(actor, num_steps),
        context: Rc::clone(&context),
    };
    let run = Run {
        recipes: choose(&spec),
        source,
        unquantized: roles.actor.decoder().starts_from_error().then_some(weights),
        saver: saver.committing_after_sampling(),
        num_steps,
        identity,
        job,
        folder,
        ranks,
        context,
        warning,
        data_warnings: inputs.data_warnings,
        data_metrics: inputs.datasets.metrics(),
        progress: Progress::default(),
        started: Instant::now(),
    };
    Ok((run, roles, inputs.datasets.in_order(&spec)?))
}

/// Creates the saver of checkpoints in the run folder.
fn saver(
    spec: &ResolvedSpec,
    identity: &RunIdentity,
    folder: &RunFolder,
    ranks: &Ranks,
    context: &Rc<StepContext>,
) -> Result<Saver, TrainError> {
    let checkpoints = checkpoint_store(spec, identity, folder, ranks)?;
    let saving = Saving::prepare(ranks, &checkpoints)?;
    Ok(Saver::new(ranks.clone(), checkpoints, saving, Rc::clone(context)))
}

fn checkpoint_store(
    spec: &ResolvedSpec,
    identity: &RunIdentity,
    folder: &RunFolder,
    ranks: &Ranks,
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

/// Ranks with the same tensor-parallel index as this one, with the sequence-parallel groups of each kind of
/// pass.
struct PassRanks {
    /// Ranks in updates of the actor.
    updates: Ranks,
    /// Ranks in passes for the actor's log-probs.
    logprobs: Ranks,
    /// Ranks in passes of the reference.
    reference: Ranks,
    /// Ranks in passes and updates of the critic.
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

    /// Returns the ranks for each distinct sequence-parallel degree, with the field that sets the degree.
    fn of_different_degrees(&self) -> impl Iterator<Item = (&Ranks, &'static str)> {
        let all = [
            (&self.updates, "spec.workers.mesh.sp"),
            (&self.logprobs, "spec.workers.mesh.logprobSp"),
            (&self.reference, "spec.workers.mesh.referenceSp"),
            (&self.critic, "spec.workers.mesh.criticSp"),
        ];
        let degree = |(ranks, _): &(&Ranks, &str)| ranks.sp_place().size;
        let is_first = move |at: usize| all[..at].iter().all(|before| degree(before) != degree(&all[at]));
        all.into_iter().enumerate().filter_map(move |(at, one)| is_first(at).then_some(one))
    }
}

/// Dtype in which the model's folder stores the weights; fp32 for a new model.
pub(crate) fn source_kind(model_dir: Option<&Path>) -> Kind {
    let config = model_dir.and_then(|dir| {
        rlt_files::read_to_string(&dir.join("config.json"), rlt_files::MAX_MODEL_JSON_BYTES).ok()
    });
    let config: serde_json::Value =
        config.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    // transformers 5 says `dtype`, its predecessors `torch_dtype`.
    match config["dtype"].as_str().or(config["torch_dtype"].as_str()) {
        Some("bfloat16") => Kind::BFloat16,
        Some("float16") => Kind::Half,
        _ => Kind::Float,
    }
}

/// Loads the tokenizer of a job, whose model is in `model_dir`, with the job's settings of conversations.
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

/// Returns the optimizer's settings, which all roles share.
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
