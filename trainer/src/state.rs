//! What a run keeps across a restart: everything that the next step depends on.
//!
//! Tensors: trained weights and optimizer moments of actor and critic, a frozen reference that no source can
//! make again. State: progress, data positions, the KL controller's coefficient, the scales of losses in half
//! precision. Random numbers need no state, they are functions of the seed.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, TensorPart};
use crate::critic::Critic;
use crate::data::LoaderState;
use crate::error::TrainError;
use crate::model::NamedTensors;
use crate::optim::LossScale;
use crate::reference::{FrozenPolicy, Reference};
use crate::saving::{Patience, Settled};
use crate::tracking::Stage;
use crate::tracking::console::Phase;
use crate::trainer::{Progress, Trainer};

/// The small part of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    progress: Progress,
    prompts: Option<LoaderState>,
    demonstrations: Option<LoaderState>,
    kl_coefficient: f64,
    /// Of the actor; none in checkpoints that know nothing of it.
    #[serde(default)]
    loss_scale: Option<LossScale>,
    /// Of the critic.
    #[serde(default)]
    critic_loss_scale: Option<LossScale>,
}

/// Saves a checkpoint of the last complete step and waits until it is committed. A step that is saved already
/// is left alone.
///
/// # Errors
/// [`TrainError::Checkpoint`]; earlier checkpoints are as they were.
pub fn save(trainer: &mut Trainer) -> Result<(), TrainError> {
    look_after(trainer, Patience::Until)?;
    timed(trainer, begin)?;
    timed(trainer, |trainer| settle(trainer, Patience::Until))
}

/// Begins to save a checkpoint of the last complete step; the training waits no longer than until its state
/// is copied. One that cannot be written, for example because the disk is full, costs only itself: earlier
/// ones are as they were, and the next one is tried at its time.
///
/// # Errors
/// [`TrainError`], other than that a checkpoint could not be saved.
pub fn save_beside(trainer: &mut Trainer) -> Result<(), TrainError> {
    look_after(trainer, Patience::Until)?;
    let begun = timed(trainer, begin);
    tolerate(trainer.progress.step, begun)
}

/// Commits the checkpoint that is being saved, if all ranks are done with it. One that could not be saved
/// costs only itself.
///
/// # Errors
/// As [`save_beside`].
pub fn look_after_save(trainer: &mut Trainer) -> Result<(), TrainError> {
    look_after(trainer, Patience::None)
}

fn look_after(trainer: &mut Trainer, patience: Patience) -> Result<(), TrainError> {
    let Some(step) = trainer.saving.step() else { return Ok(()) };
    let settled = timed(trainer, |trainer| settle(trainer, patience));
    tolerate(step, settled)
}

/// Commits the checkpoint that is being saved though the run has failed, where no other rank can be
/// elsewhere: a rank that is alone does, and ranks that have come to the same end together.
pub fn keep_save(trainer: &mut Trainer, error: &TrainError) {
    if (trainer.ranks.size() == 1 || matches!(error, TrainError::Diverged { .. }))
        && let Err(error) = settle(trainer, Patience::Until)
    {
        tracing::error!(error = &error as &dyn std::error::Error, "the last checkpoint could not be saved");
    }
}

/// Counts the time of `act` as the checkpoint's.
fn timed(
    trainer: &mut Trainer,
    act: impl FnOnce(&mut Trainer) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let started = Instant::now();
    let result = act(trainer);
    *trainer.seconds_saving.get_or_insert(0.0) += started.elapsed().as_secs_f64();
    result
}

fn tolerate(step: u64, result: Result<(), TrainError>) -> Result<(), TrainError> {
    match result {
        Err(TrainError::Checkpoint(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, step, "a checkpoint could not be saved, training goes on without it");
            Ok(())
        }
        result => result,
    }
}

fn begin(trainer: &mut Trainer) -> Result<(), TrainError> {
    let position = (trainer.progress.cold_start_steps, trainer.progress.step);
    if trainer.saved_at == Some(position) {
        return Ok(());
    }
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "save_checkpoint").entered();
    trainer.watch.begin_phase(Phase::Saving, 0);
    let parts = parts(trainer)?;
    let mut small = Value::Null;
    if trainer.ranks.is_leader() {
        // No step of the checkpoint may be missing from the logs.
        trainer.watch.sync();
        small = state(trainer)?;
    }
    let Trainer { saving, ranks, checkpoints, progress, .. } = trainer;
    saving.begin((ranks, checkpoints), progress.step, small, parts)?;
    trainer.reference.rest();
    trainer.saved_at = Some(position);
    Ok(())
}

fn settle(trainer: &mut Trainer, patience: Patience) -> Result<(), TrainError> {
    let Trainer { saving, ranks, checkpoints, .. } = trainer;
    match saving.settle((ranks, checkpoints), patience) {
        Ok(Settled::Nothing | Settled::Later) => Ok(()),
        Ok(Settled::Committed) => {
            if trainer.ranks.is_leader() {
                tell_checkpoints(trainer);
            }
            Ok(())
        }
        Err(error) => {
            // Whoever asks again for a checkpoint of that step gets a new one.
            trainer.saved_at = None;
            Err(error)
        }
    }
}

/// Lets those who watch know which checkpoints there are. A folder that cannot be listed costs them the news.
fn tell_checkpoints(trainer: &Trainer) {
    match trainer.checkpoints.committed() {
        Ok(committed) => trainer.watch.checkpoints(&committed),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "checkpoints are not reported")
        }
    }
}

/// What this rank saves of all roles; `None` where the leader saves for it.
fn parts(trainer: &mut Trainer) -> Result<Option<Vec<TensorPart>>, TrainError> {
    if !trainer.saving.is_shared() {
        let tensors = tensors(trainer)?.into_iter();
        let whole = || tensors.map(|(name, tensor)| TensorPart::whole(name, tensor)).collect();
        return Ok(trainer.ranks.is_leader().then(whole));
    }
    let mut parts = trainer.actor.trained().parts()?;
    if let Some(critic) = &mut trainer.critic {
        parts.extend(critic.trained().parts()?);
    }
    if let Some(copy) = own_reference(trainer) {
        parts.extend(copy.parts(&trainer.ranks)?);
    }
    Ok(Some(parts))
}

/// The reference that was made after a cold start: only this run has it.
fn own_reference(trainer: &Trainer) -> Option<&FrozenPolicy> {
    match &trainer.reference {
        Reference::Frozen(Some(copy)) if trainer.progress.cold_start_steps > 0 => Some(copy),
        _ => None,
    }
}

/// The tensors of all roles, on the leader. Where ranks share them all take part.
fn tensors(trainer: &mut Trainer) -> Result<NamedTensors, TrainError> {
    let folder = trainer.folder.root().to_owned();
    let mut tensors = trainer.actor.trained().tensors(&folder)?;
    if let Some(critic) = &mut trainer.critic {
        tensors.extend(critic.trained().tensors(&folder)?);
    }
    if let Some(copy) = own_reference(trainer) {
        tensors.extend(copy.tensors(trainer.ranks.is_leader(), &folder)?);
    }
    Ok(tensors)
}

fn state(trainer: &Trainer) -> Result<Value, TrainError> {
    let state = State {
        progress: Progress { elapsed_seconds: trainer.elapsed_seconds(), ..trainer.progress.clone() },
        prompts: trainer.prompts.as_ref().map(|loader| loader.state().clone()),
        demonstrations: trainer.demonstrations.as_ref().map(|loader| loader.state().clone()),
        kl_coefficient: trainer.kl.coefficient(),
        loss_scale: Some(trainer.actor.loss_scale()),
        critic_loss_scale: trainer.critic.as_ref().map(Critic::loss_scale),
    };
    serde_json::to_value(state).map_err(TrainError::State)
}

/// Goes on from the newest complete checkpoint of the run folder, or from `checkpoint.resumeFrom`, or from
/// nothing; then opens the trackers where that stands.
///
/// # Errors
/// [`TrainError`]: damaged checkpoints and no complete one left, or a checkpoint of another model or data.
pub fn resume(trainer: &mut Trainer) -> Result<(), TrainError> {
    let (checkpoint, notes) = find_together(trainer)?;
    let resumed_after = checkpoint.as_ref().map(|checkpoint| restore(trainer, checkpoint)).transpose()?;
    if trainer.ranks.is_leader() {
        trainer.watch.open(&trainer.job.spec().tracking, &trainer.folder, resumed_after);
        tell_checkpoints(trainer);
    }
    notes.iter().for_each(|note| trainer.watch.message(note));
    Ok(())
}

/// The leader chooses and verifies; the other ranks take the same, of which they read no more than they need.
fn find_together(trainer: &mut Trainer) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let ranks = trainer.ranks.clone();
    let found = if ranks.is_leader() { Some(find(trainer)?) } else { None };
    let named = |(checkpoint, _): &(Option<Checkpoint>, _)| {
        checkpoint.as_ref().map(|found| (found.path().to_path_buf(), found.manifest().sha256.clone()))
    };
    let chosen = ranks.from_leader(found.as_ref().map(named))?;
    if let Some(found) = found {
        return Ok(found);
    }
    let opened = chosen.map(|(path, digest)| Checkpoint::open_verified(&path, &digest)).transpose()?;
    Ok((opened, Vec::new()))
}

fn find(trainer: &mut Trainer) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let fetched = trainer.checkpoints.fetch_newer();
    let latest = trainer.checkpoints.latest_complete()?;
    let path = trainer.folder.checkpoints().display().to_string();
    let mut notes = match fetched {
        Ok(notes) => notes,
        // What is here is enough to go on from.
        Err(error) if latest.checkpoint.is_some() && !error.is_permanent() => {
            vec![format!("copies of checkpoints could not be looked at: {error}")]
        }
        Err(error) => return Err(error.into()),
    };
    notes.extend(latest.skipped.iter().map(|error| format!("passed over a damaged checkpoint: {error}")));
    let spec = trainer.spec().checkpoint.clone();
    if latest.checkpoint.is_none() && !latest.skipped.is_empty() {
        return Err(TrainError::NoCompleteCheckpoint { path, reasons: notes.join("; ") });
    }
    let checkpoint = match (latest.checkpoint, &spec.resume_from) {
        (None, Some(other)) => Some(trainer.checkpoints.checkpoint_at(other.as_ref())?),
        (found, _) => found,
    };
    if let Some(checkpoint) = &checkpoint {
        notes.push(format!("resuming after step {} from {}", checkpoint.step(), checkpoint.path().display()));
    }
    Ok((checkpoint, notes))
}

fn restore(trainer: &mut Trainer, checkpoint: &Checkpoint) -> Result<(Stage, u64), TrainError> {
    trainer.actor.trained().restore(checkpoint)?;
    let state: State = serde_json::from_value(checkpoint.state().clone()).map_err(TrainError::State)?;
    let loaders = (trainer.prompts.as_mut(), state.prompts);
    if let (Some(loader), Some(position)) = loaders {
        loader.resume(&position)?;
    }
    if let (Some(loader), Some(position)) = (trainer.demonstrations.as_mut(), state.demonstrations) {
        loader.resume(&position)?;
    }
    trainer.kl.resume(state.kl_coefficient);
    trainer.actor.resume_loss_scale(state.loss_scale);
    trainer.progress = state.progress;
    trainer.saved_at = Some((trainer.progress.cold_start_steps, trainer.progress.step));
    restore_reference(trainer, checkpoint)?;
    restore_critic(trainer, checkpoint)?;
    if let Some(critic) = &mut trainer.critic {
        critic.resume_loss_scale(state.critic_loss_scale);
    }
    Ok(match trainer.progress.step {
        0 if trainer.progress.first_evaluation.is_none() => {
            (Stage::ColdStart, trainer.progress.cold_start_steps)
        }
        step => (Stage::Training, step),
    })
}

/// The critic as it was, if there was one.
fn restore_critic(trainer: &mut Trainer, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    if Critic::is_in(checkpoint) {
        trainer.begin_critic()?;
        trainer.critic.as_mut().map_or(Ok(()), |critic| critic.load(checkpoint))?;
    }
    Ok(())
}

/// The reference as it was: from the checkpoint where a cold start made it, else it is what the model's
/// source gave, which `setup` keeps before anything is restored.
fn restore_reference(trainer: &mut Trainer, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let Reference::Frozen(copy) = &mut trainer.reference else { return Ok(()) };
    if let Some(frozen) = FrozenPolicy::of_checkpoint(&trainer.actor, checkpoint, trainer.folder.root())? {
        *copy = Some(Box::new(frozen));
    }
    Ok(())
}
