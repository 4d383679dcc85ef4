//! Setup of a run: creates device, tokenizer, data, model, rewards and engine of a validated job.
//!
//! Errors of the model, the data or the rewards are found here, before the first step.

pub(crate) mod datasets;
mod device;
pub(crate) mod hub_models;
mod inputs;
pub(crate) mod model;
mod pass_ranks;
mod roles;
mod settings;

use std::rc::Rc;
use std::time::{Duration, Instant};

use rlt_api::ValidatedJob;
use rlt_api::resolved::ResolvedSpec;
use rlt_data::{Pipeline, TrainingRows};
use rlt_parallel::Ranks;
use rlt_storage::checkpoint::{CheckpointStore, RunIdentity};
use rlt_storage::run_folder::RunFolder;

use crate::observe::stop::StopRequest;
use crate::roles::Roles;
use crate::roles::reward::{ExternalFunctions, PoolOptions, RewardFunctions, RewardPool};
use crate::roles::step_context::StepContext;
use crate::run::checkpoint_writer::CheckpointWriter;
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::saver::Saver;
use crate::run::{Progress, Run, identity};

use datasets::Datasets;
use inputs::Inputs;
use pass_ranks::PassRanks;
use roles::RoleSetup;
use settings::optimizer_options;
pub(crate) use settings::{load_tokenizer, source_kind};

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
) -> Result<(Run, Roles, Pipeline), TrainError> {
    let identity = identity::of_job(&job)?;
    let pass_ranks = PassRanks::of(job.spec(), ranks)?;
    let ranks = pass_ranks.updates.world();
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
    actor.learner.decoder().check_vocabulary(inputs.tokenizer.vocab_len().saturating_sub(1) as u32)?;
    let meshes = model::RoleMeshes::of(&spec, &actor)?;
    let reference = model::reference(&spec, &actor, &folder, &meshes)?;
    let reward_folders = model::reward_model_folders(&spec, &ranks, &folder)?;
    let reward_models =
        model::reward_models(&spec, &reward_folders, &inputs.tokenizer, &actor, &meshes, &folder)?;
    let context = StepContext::new(spec.training.seed, stop);
    let saver = saver(&spec, &identity, &folder, &ranks, &context)?;
    let num_steps = inputs.datasets.num_steps(&spec);
    let source = inputs.model.origin(&spec, &reward_folders, inputs.downloaded.commits());
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
        warns_of_repeats: !inputs.repeat_warnings.is_empty(),
        data_warnings: [inputs.data_warnings, inputs.repeat_warnings].concat(),
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
    let writer = CheckpointWriter::prepare(ranks, &checkpoints)?;
    Ok(Saver::new(ranks.clone(), checkpoints, writer, Rc::clone(context)))
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

fn reward_pool(spec: &ResolvedSpec, data: &Datasets, cores: usize) -> Result<RewardPool, TrainError> {
    let functions = RewardFunctions::new(&spec.rewards, spec.rollout.max_completion_tokens as usize)?;
    if !spec.rewards.functions.is_empty() {
        // Rows of a stream are checked when they are read.
        let in_memory = data.prompts.as_ref().and_then(TrainingRows::in_memory);
        in_memory.map_or(Ok(()), |prompts| functions.check(prompts))?;
        functions.check(&data.held_out)?;
    }
    let num_workers = spec.workers.threads.map_or(cores, |threads| threads as usize);
    let timeout = Duration::from_secs_f64(spec.rewards.timeout_seconds);
    Ok(RewardPool::new(functions, PoolOptions { num_workers, timeout }))
}
