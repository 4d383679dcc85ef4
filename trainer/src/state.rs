//! What a run keeps across a restart: everything that the next step depends on.
//!
//! Tensors: trained weights and optimizer moments of actor and critic, a frozen reference that no source can make again.
//! State: progress, data positions, the KL controller's coefficient. Random numbers need no state, they are functions of the seed.

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, CheckpointContent};
use crate::critic::Critic;
use crate::data::LoaderState;
use crate::error::TrainError;
use crate::model::NamedTensors;
use crate::reference::{FrozenPolicy, Reference};
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
}

/// Saves a checkpoint of the last complete step; seconds that it took. A step that is saved already is left alone.
///
/// # Errors
/// [`TrainError::Checkpoint`]; earlier checkpoints are as they were.
pub fn save(trainer: &mut Trainer) -> Result<f64, TrainError> {
    let position = (trainer.progress.cold_start_steps, trainer.progress.step);
    if trainer.saved_at == Some(position) {
        return Ok(0.0);
    }
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "save_checkpoint").entered();
    let tensors = tensors(trainer)?;
    // All ranks hold the same state.
    if !trainer.ranks.is_leader() {
        trainer.saved_at = Some(position);
        return Ok(0.0);
    }
    trainer.watch.begin_phase(Phase::Saving, 0);
    // No step of the checkpoint may be missing from the logs.
    trainer.watch.sync();
    let content = content(trainer, tensors)?;
    let saved = trainer.checkpoints.save(trainer.progress.step, &content)?;
    trainer.reference.rest();
    trainer.saved_at = Some(position);
    tell_checkpoints(trainer);
    Ok(saved.duration.as_secs_f64())
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

/// The tensors of all roles, on the leader. Where ranks share them all take part.
fn tensors(trainer: &mut Trainer) -> Result<NamedTensors, TrainError> {
    let folder = trainer.folder.root().to_owned();
    let mut tensors = trainer.actor.trained().tensors(&folder)?;
    if let Some(critic) = &mut trainer.critic {
        tensors.extend(critic.trained().tensors(&folder)?);
    }
    // Only this run has a reference that was made after a cold start.
    if let (Reference::Frozen(Some(copy)), true) = (&trainer.reference, trainer.progress.cold_start_steps > 0)
    {
        tensors.extend(copy.tensors(trainer.ranks.is_leader(), &folder)?);
    }
    Ok(tensors)
}

fn content(trainer: &Trainer, tensors: NamedTensors) -> Result<CheckpointContent, TrainError> {
    let state = State {
        progress: Progress { elapsed_seconds: trainer.elapsed_seconds(), ..trainer.progress.clone() },
        prompts: trainer.prompts.as_ref().map(|loader| loader.state().clone()),
        demonstrations: trainer.demonstrations.as_ref().map(|loader| loader.state().clone()),
        kl_coefficient: trainer.kl.coefficient(),
    };
    let state = serde_json::to_value(state).map_err(TrainError::State)?;
    Ok(CheckpointContent { tensors, state })
}

/// Goes on from the newest complete checkpoint of the run folder, or from `checkpoint.resumeFrom`, or from nothing; then
/// opens the trackers where that stands.
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

/// The leader chooses; the other ranks take the same.
fn find_together(trainer: &mut Trainer) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let ranks = trainer.ranks.clone();
    let found = if ranks.is_leader() { Some(find(trainer)?) } else { None };
    let path_of =
        |(checkpoint, _): &(Option<Checkpoint>, _)| checkpoint.as_ref().map(|c| c.path().to_path_buf());
    let path = ranks.from_leader(found.as_ref().map(path_of))?;
    match (found, path) {
        (Some(found), _) => Ok(found),
        (None, path) => Ok((path.map(|path| Checkpoint::open(&path)).transpose()?, Vec::new())),
    }
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
    trainer.progress = state.progress;
    trainer.saved_at = Some((trainer.progress.cold_start_steps, trainer.progress.step));
    restore_reference(trainer, checkpoint)?;
    restore_critic(trainer, checkpoint)?;
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

/// The reference as it was: from the checkpoint where a cold start made it, else it is what the model's source gave, which
/// `setup` keeps before anything is restored.
fn restore_reference(trainer: &mut Trainer, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let Reference::Frozen(copy) = &mut trainer.reference else { return Ok(()) };
    if let Some(frozen) = FrozenPolicy::of_checkpoint(&trainer.actor, checkpoint, trainer.folder.root())? {
        *copy = Some(Box::new(frozen));
    }
    Ok(())
}
