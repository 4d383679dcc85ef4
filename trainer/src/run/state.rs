//! The state of a run in a checkpoint: everything that the next step depends on.
//!
//! Tensors are the trained weights and optimizer moments of actor and critic, and a reference that cannot be
//! loaded from elsewhere. The JSON state has progress, data positions, the coefficient of the KL controller,
//! and the loss scales of half precision. Random numbers need no state, because they are functions of the
//! seed.

use std::time::Instant;

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::{CheckpointSpec, Precision};
use rlt_data::{DataPosition, LoaderState, Pipeline};
use rlt_decoder::NamedTensors;
use rlt_storage::checkpoint::{Checkpoint, CheckpointShard, RunIdentity};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::observe::tracking::Stage;
use crate::observe::tracking::console::Phase;
use crate::roles::Roles;
use crate::roles::critic::Critic;
use crate::roles::optim::LossScale;
use crate::run::checkpoint_writer::Wait;
use crate::run::demonstration_limit::DemonstrationLimit;
use crate::run::error::TrainError;
use crate::run::setup::datasets::{context_of, max_demonstration_tokens};
use crate::run::{Progress, Run, StepReward, identity};

/// Reads the progress of a run from a checkpoint.
///
/// # Errors
/// [`TrainError::State`] if the checkpoint is not that of a run.
pub(crate) fn progress_of(checkpoint: &Checkpoint) -> Result<Progress, TrainError> {
    serde_json::from_value(checkpoint.state()["progress"].clone()).map_err(TrainError::State)
}

/// Returns the compute dtype in which a checkpoint was trained; `None` for those of earlier releases.
pub(crate) fn precision_of(checkpoint: &Checkpoint) -> Option<Precision> {
    serde_json::from_value(checkpoint.state()["precision"].clone()).ok()
}

/// JSON state of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    progress: Progress,
    prompts: Option<LoaderState>,
    demonstrations: Option<LoaderState>,
    /// Limit under which demonstrations were read; `None` without demonstrations, and in checkpoints of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demonstration_limit: Option<DemonstrationLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preferences: Option<LoaderState>,
    kl_coefficient: f64,
    /// Loss scale of the actor; `None` in checkpoints of releases without one.
    #[serde(default)]
    loss_scale: Option<LossScale>,
    /// Loss scale of the critic; `None` without a critic, and in checkpoints of releases without one.
    #[serde(default)]
    critic_loss_scale: Option<LossScale>,
    /// Best checkpoint so far, this one included; `None` in checkpoints of earlier releases, whose best
    /// checkpoint is that of the best evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_best: Option<StepReward>,
    /// Compute dtype of the training, which the manifest may leave to the device; `None` in checkpoints of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    precision: Option<Precision>,
    /// Identity of the run; `None` in checkpoints of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<RunIdentity>,
    /// State of the training's recipe; null for recipes without one.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    recipe: Value,
}

/// Saves a checkpoint of the last complete step and waits until it is committed. A step that is already saved
/// is not saved again.
///
/// # Errors
/// [`TrainError::Checkpoint`]; earlier checkpoints are unchanged.
pub fn save(run: &Run, roles: &mut Roles, data: &Pipeline) -> Result<(), TrainError> {
    run.saver.borrow_mut().commit_if_done(Wait::UntilWritten)?;
    begin(run, roles, data)?;
    timed(run, || run.saver.borrow_mut().settle(Wait::UntilWritten))
}

/// Begins to save a checkpoint of the last complete step; the training waits only until its state is copied.
/// A failed save, for example on a full disk, does not end the run: earlier checkpoints are unchanged, and
/// the next save is attempted as scheduled.
///
/// # Errors
/// [`TrainError`], except for a failed save.
pub fn save_beside(run: &Run, roles: &mut Roles, data: &Pipeline) -> Result<(), TrainError> {
    run.saver.borrow_mut().commit_if_done(Wait::UntilWritten)?;
    let begun = begin(run, roles, data);
    run.saver.borrow_mut().tolerate(run.progress.step, begun)
}

/// Commits the save in flight of a failed run, if all ranks have the same state: with a single rank, or if
/// all ranks failed in the same way.
pub fn keep_save(run: &Run, error: &TrainError) {
    if (run.ranks.size() == 1 || matches!(error, TrainError::Diverged { .. }))
        && let Err(error) = run.saver.borrow_mut().settle(Wait::UntilWritten)
    {
        tracing::error!(error = &error as &dyn std::error::Error, "the last checkpoint could not be saved");
    }
}

/// Runs `act` and adds its duration to the time spent on checkpoints.
fn timed(run: &Run, act: impl FnOnce() -> Result<(), TrainError>) -> Result<(), TrainError> {
    let started = Instant::now();
    let result = act();
    run.saver.borrow_mut().add_time(started.elapsed());
    result
}

fn begin(run: &Run, roles: &mut Roles, data: &Pipeline) -> Result<(), TrainError> {
    timed(run, || {
        let position = (run.progress.cold_start_steps, run.progress.step);
        if run.saver.borrow().saved_at == Some(position) {
            return Ok(());
        }
        let _followed = tracing::info_span!(target: rlt_traces::TARGET, "save_checkpoint").entered();
        run.context.watch().begin_phase(Phase::Saving, 0);
        let parts = parts(run, roles)?;
        let mut small = Value::Null;
        if run.ranks.is_leader() {
            // Logs are synced first, so that they lack no step of the checkpoint.
            run.context.watch().sync();
            small = state(run, roles, data)?;
        }
        run.saver.borrow_mut().begin(position, small, parts)?;
        roles.reference.release_pages();
        Ok(())
    })
}

/// Returns the shards of all roles that this rank saves; `None` if the leader saves for this rank.
fn parts(run: &Run, roles: &mut Roles) -> Result<Option<Vec<CheckpointShard>>, TrainError> {
    if !run.saver.borrow().is_shared() {
        let tensors = tensors(run, roles)?.into_iter();
        let whole = || tensors.map(|(name, tensor)| CheckpointShard::full(name, tensor)).collect();
        return Ok(run.ranks.is_leader().then(whole));
    }
    let mut parts = roles.actor.train_state().checkpoint_shards()?;
    if let Some(critic) = roles.critic.train_state() {
        parts.extend(critic.checkpoint_shards()?);
    }
    if let Some(copy) = roles.reference.own_copy() {
        parts.extend(copy.checkpoint_shards(&run.ranks)?);
    }
    Ok(Some(parts))
}

/// Returns the tensors of all roles on the leader. Collective with FSDP.
fn tensors(run: &Run, roles: &mut Roles) -> Result<NamedTensors, TrainError> {
    let folder = run.folder.root();
    let mut tensors = roles.actor.train_state().tensors(folder)?;
    if let Some(critic) = roles.critic.train_state() {
        tensors.extend(critic.tensors(folder)?);
    }
    if let Some(copy) = roles.reference.own_copy() {
        tensors.extend(copy.tensors(run.ranks.is_leader(), folder)?);
    }
    Ok(tensors)
}

fn state(run: &Run, roles: &Roles, data: &Pipeline) -> Result<Value, TrainError> {
    let DataPosition { prompts, demonstrations, preferences } = data.position();
    let state = State {
        progress: Progress { elapsed_seconds: run.elapsed_seconds(), ..run.progress.clone() },
        prompts,
        demonstration_limit: demonstrations.is_some().then(|| demonstration_limit(run, roles)),
        demonstrations,
        preferences,
        kl_coefficient: roles.reference.kl_coefficient(),
        loss_scale: Some(roles.actor.loss_scale()),
        critic_loss_scale: roles.critic.loss_scale(),
        kept_best: run.saver.borrow().best.after_save_of(run.progress.step),
        precision: Some(run.spec().training.precision),
        run: Some(run.identity.clone()),
        recipe: run.recipes.training.state(),
    };
    serde_json::to_value(state).map_err(TrainError::State)
}

/// Resumes from the newest complete checkpoint of the run folder, or from `checkpoint.resumeFrom`, or starts
/// from scratch; then opens the trackers at that step.
///
/// # Errors
/// [`TrainError`]: every checkpoint is damaged, or the checkpoint is that of another model or of other data.
pub fn resume(run: &mut Run, roles: &mut Roles, data: &mut Pipeline) -> Result<(), TrainError> {
    let (checkpoint, mut notes) = find_together(run)?;
    match &checkpoint {
        Some(checkpoint) if run.ranks.is_leader() => check_room(run, checkpoint)?,
        Some(_) => {}
        None => notes.extend(check_room_at_start(run, roles)?),
    }
    let unquantized = run.unquantized.take();
    let resumed_after = match (&checkpoint, unquantized) {
        (Some(checkpoint), _) => Some(restore(run, roles, data, checkpoint)?),
        (None, Some(weights)) => {
            roles.actor.start_from_error::<TrainError>(&weights)?;
            None
        }
        (None, None) => None,
    };
    if run.ranks.is_leader() {
        run.context.watch_mut().open(&run.job.spec().tracking, &run.folder, resumed_after);
        run.saver.borrow().report();
    }
    notes.iter().for_each(|note| run.context.watch().message(note));
    Ok(())
}

/// Fails if the disk has too little space for another checkpoint of the size of the one that the run resumes
/// from, unless no step is left.
fn check_room(run: &Run, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let needed: u64 = checkpoint.manifest().files.values().map(|file| file.num_bytes).sum();
    let folder = run.folder.checkpoints();
    match rlt_files::free_bytes(&folder) {
        Some(free) if free < needed && checkpoint.step() < run.num_steps => {
            Err(TrainError::NoRoom { path: folder.display().to_string(), free, needed })
        }
        _ => Ok(()),
    }
}

/// Fails if the disk has too little space for the first checkpoint of a run that starts from scratch; returns
/// a warning on the leader if there is space for fewer checkpoints than the run keeps. Collective.
fn check_room_at_start(run: &Run, roles: &mut Roles) -> Result<Option<String>, TrainError> {
    let needed: u64 = run.ranks.all_gather(saved_bytes(run, roles)?)?.iter().sum();
    if !run.ranks.is_leader() {
        return Ok(None);
    }
    let folder = run.folder.checkpoints();
    let free = rlt_files::free_bytes(&folder).or_else(|| rlt_files::free_bytes(run.folder.root()));
    let num_kept = num_kept(&run.spec().checkpoint, run.num_steps);
    free.map_or(Ok(None), |free| room_at_start(&folder.display().to_string(), free, needed, num_kept))
}

/// Returns the number of bytes that this rank would save now. The sum over ranks is the size of a checkpoint,
/// without a critic or a copy of the reference that is created later.
fn saved_bytes(run: &Run, roles: &mut Roles) -> Result<u64, TrainError> {
    let bytes_of = |parts: Vec<CheckpointShard>| -> u64 {
        parts.iter().map(|part| (part.values.numel() * part.values.kind().elt_size_in_bytes()) as u64).sum()
    };
    let mut num_bytes = bytes_of(roles.actor.train_state().checkpoint_shards()?);
    if let Some(critic) = roles.critic.train_state() {
        num_bytes += bytes_of(critic.checkpoint_shards()?);
    }
    if let Some(copy) = roles.reference.own_copy() {
        num_bytes += bytes_of(copy.checkpoint_shards(&run.ranks)?);
    }
    Ok(num_bytes)
}

/// Returns the largest number of checkpoints that a run of `num_steps` has at a time: a new one is complete
/// before the oldest is deleted.
fn num_kept(spec: &CheckpointSpec, num_steps: u64) -> u64 {
    let num_saves = if spec.every_steps == 0 { 1 } else { num_steps.div_ceil(spec.every_steps).max(1) };
    (u64::from(spec.keep) + 1).min(num_saves) + u64::from(spec.keep_best)
}

/// Compares the free bytes with the size of one checkpoint, and of as many as the run keeps.
fn room_at_start(path: &str, free: u64, needed: u64, num_kept: u64) -> Result<Option<String>, TrainError> {
    if free < needed {
        return Err(TrainError::NoRoom { path: path.to_owned(), free, needed });
    }
    let in_all = needed.saturating_mul(num_kept);
    Ok((free < in_all).then(|| {
        format!(
            "warning: {path}: {free} bytes are free, and the {num_kept} checkpoints that the run keeps at a time need \
             {in_all}: make room, or lower spec.checkpoint.keep"
        )
    }))
}

/// Selects and verifies a checkpoint on the leader; the other ranks open the same one, and read only what
/// they need. Collective.
fn find_together(run: &Run) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let found = if run.ranks.is_leader() { Some(find(run)?) } else { None };
    let named = |(checkpoint, _): &(Option<Checkpoint>, _)| {
        checkpoint.as_ref().map(|found| (found.path().to_path_buf(), found.manifest().sha256.clone()))
    };
    let chosen = run.ranks.broadcast(found.as_ref().map(named))?;
    if let Some(found) = found {
        return Ok(found);
    }
    let opened = chosen.map(|(path, digest)| Checkpoint::open_verified(&path, &digest)).transpose()?;
    Ok((opened, Vec::new()))
}

fn find(run: &Run) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let checkpoints = &mut run.saver.borrow_mut().checkpoints;
    let fetched = checkpoints.fetch_newer();
    let latest = checkpoints.latest_complete()?;
    let path = run.folder.checkpoints().display().to_string();
    let mut notes = match fetched {
        Ok(notes) => notes,
        // The local checkpoint suffices to resume.
        Err(error) if latest.checkpoint.is_some() && !error.is_permanent() => {
            vec![format!("copies of checkpoints could not be listed: {error}")]
        }
        Err(error) => return Err(error.into()),
    };
    notes.extend(latest.skipped.iter().map(|error| format!("passed over a damaged checkpoint: {error}")));
    let spec = &run.spec().checkpoint;
    if latest.checkpoint.is_none() && !latest.skipped.is_empty() {
        return Err(TrainError::NoCompleteCheckpoint { path, reasons: notes.join("; ") });
    }
    let checkpoint = match (latest.checkpoint, &spec.resume_from) {
        (None, Some(other)) => Some(checkpoints.checkpoint_at(other.as_ref())?),
        (found, _) => found,
    };
    if let Some(checkpoint) = &checkpoint {
        notes.push(format!("resuming after step {} from {}", checkpoint.step(), checkpoint.path().display()));
    }
    Ok((checkpoint, notes))
}

fn restore(
    run: &mut Run,
    roles: &mut Roles,
    data: &mut Pipeline,
    checkpoint: &Checkpoint,
) -> Result<(Stage, u64), TrainError> {
    roles.actor.load(checkpoint)?;
    // Checked after the tensors, because an error about a tensor is more specific.
    identity::check(&run.identity, checkpoint, checkpoint.path().starts_with(run.folder.checkpoints()))?;
    let state: State = serde_json::from_value(checkpoint.state().clone()).map_err(TrainError::State)?;
    let demonstrations = demonstration_position(run, roles, data, &state)?;
    let State { progress, prompts, preferences, .. } = state;
    data.resume(&DataPosition { prompts, demonstrations, preferences })?;
    roles.reference.controller.resume(state.kl_coefficient);
    roles.actor.resume_loss_scale(state.loss_scale);
    run.recipes.training.resume(state.recipe).map_err(TrainError::State)?;
    run.progress = progress;
    run.saver.borrow_mut().saved_at = Some((run.progress.cold_start_steps, run.progress.step));
    if run.spec().checkpoint.keep_best {
        let best = state.kept_best.or(run.progress.best_evaluation);
        run.saver.borrow_mut().resume_best(best);
    }
    roles.reference.load(&roles.actor, checkpoint)?;
    restore_critic(roles, checkpoint)?;
    roles.critic.resume_loss_scale(state.critic_loss_scale);
    Ok(match run.progress.step {
        0 if run.progress.first_evaluation.is_none() => (Stage::ColdStart, run.progress.cold_start_steps),
        step => (Stage::Training, step),
    })
}

/// Returns the position in the demonstrations, after a check that the rows are those of the checkpoint. After
/// a cold start no step reads them any more, so there may be another number of rows.
fn demonstration_position(
    run: &Run,
    roles: &Roles,
    data: &Pipeline,
    state: &State,
) -> Result<Option<LoaderState>, TrainError> {
    let (Some(saved), Some(loader)) = (&state.demonstrations, &data.demonstrations) else {
        return Ok(state.demonstrations.clone());
    };
    if !are_demonstrations_needed(run.spec(), &state.progress) {
        return Ok(Some(LoaderState { num_items: loader.state().num_items, ..saved.clone() }));
    }
    if let Some(earlier) = state.demonstration_limit {
        demonstration_limit(run, roles).check_continues(earlier, loader, saved)?;
    }
    Ok(Some(saved.clone()))
}

fn demonstration_limit(run: &Run, roles: &Roles) -> DemonstrationLimit {
    let context = context_of(&roles.actor.decoder().config);
    DemonstrationLimit::new(run.spec(), max_demonstration_tokens(run.spec(), context))
}

/// Whether steps that train on demonstrations remain after `progress`.
fn are_demonstrations_needed(spec: &ResolvedSpec, progress: &Progress) -> bool {
    let remains = |steps: u32| progress.step == 0 && progress.cold_start_steps < u64::from(steps);
    let cold_start = spec.algorithm.cold_start.as_ref();
    spec.algorithm.is_supervised() || cold_start.is_some_and(|cold_start| remains(cold_start.steps))
}

/// Restores the critic, if the checkpoint has one.
fn restore_critic(roles: &mut Roles, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    if Critic::is_in(checkpoint) {
        roles.critic.begin(&roles.actor)?;
        roles.critic.load(checkpoint)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rlt_api::ExitCode;

    use super::*;

    #[test]
    fn a_run_starts_only_with_space_for_one_checkpoint_and_is_warned_without_space_for_all() {
        let error = room_at_start("/run/checkpoints", 99, 100, 4).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::RetryableIo);
        let message = error.to_string();
        for words in ["/run/checkpoints", "99 bytes are free", "needs 100"] {
            assert!(message.contains(words), "{message}");
        }
        let warning = room_at_start("/run/checkpoints", 399, 100, 4).unwrap().unwrap();
        for words in ["/run/checkpoints", "399 bytes are free", "4 checkpoints", "need 400"] {
            assert!(warning.contains(words), "{warning}");
        }
        assert_eq!(room_at_start("/run/checkpoints", 400, 100, 4).unwrap(), None);
    }

    #[test]
    fn the_number_of_checkpoints_is_that_of_the_saves_up_to_the_kept_ones_and_a_new_one() {
        let kept = |every_steps, keep, keep_best, num_steps| {
            num_kept(&CheckpointSpec { every_steps, keep, keep_best, ..CheckpointSpec::default() }, num_steps)
        };
        assert_eq!(kept(20, 3, false, 1000), 4);
        assert_eq!(kept(20, 3, true, 1000), 5);
        assert_eq!(kept(20, 3, false, 30), 2);
        assert_eq!(kept(0, 3, false, 1000), 1);
        assert_eq!(kept(20, 1000, false, 0), 1);
    }

    /// Returns a job with this `algorithm`.
    fn job(algorithm: &str) -> rlt_api::ValidatedJob {
        let text = format!(
            "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: rows}}\nspec:\n  \
             model: {{path: /models/one}}\n  data: {{train: [a.jsonl]}}\n  algorithm: {algorithm}\n  \
             rewards: {{functions: [{{name: exact, kind: Exact}}]}}\n  training: {{steps: 9}}\n"
        );
        rlt_api::validate(&text).unwrap()
    }

    #[test]
    fn demonstrations_are_needed_by_supervised_training_and_until_the_end_of_a_cold_start() {
        let needed = |algorithm: &str, cold_start_steps, step| {
            let progress = Progress { step, cold_start_steps, ..Progress::default() };
            are_demonstrations_needed(job(algorithm).spec(), &progress)
        };
        assert!(needed("{kind: SFT}", 0, 8));
        let cold_start = "{kind: GRPO, coldStart: {steps: 3, batchSize: 2}}";
        assert_eq!(
            [(0, 0), (2, 0), (3, 0), (3, 1)].map(|(cold, step)| needed(cold_start, cold, step)),
            [true, true, false, false]
        );
        assert!(!needed("{kind: GRPO}", 0, 0));
    }
}
