//! Saving of a run's checkpoints: a save is started after a step, committed once all ranks have written their
//! files, and reported to observers. The content of a checkpoint is in [`crate::run::state`], writing by
//! ranks in [`crate::run::checkpoint_writer`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rlt_parallel::Ranks;
use rlt_storage::checkpoint::{CheckpointShard, CheckpointStore};
use rlt_storage::error_chain;
use serde_json::Value;

use crate::roles::step_context::StepContext;
use crate::run::StepReward;
use crate::run::best::BestCheckpoint;
use crate::run::checkpoint_writer::{CheckpointWriter, Settled, Wait};
use crate::run::error::TrainError;

/// Number of completed cold-start steps and training steps at the time of a checkpoint.
pub(crate) type SavedAt = (u64, u64);

/// Maximum number of consecutive failed saves before the run ends.
const MAX_FAILED_SAVES: u32 = 5;

/// Saver of checkpoints, which writes them while the training continues.
pub(crate) struct Saver {
    ranks: Ranks,
    pub(crate) checkpoints: CheckpointStore,
    writer: CheckpointWriter,
    context: Rc<StepContext>,
    /// Best checkpoint so far, for runs that keep it.
    pub(crate) best: BestCheckpoint,
    /// Position of the latest checkpoint, committed or in flight.
    pub(crate) saved_at: Option<SavedAt>,
    /// Number of consecutive saves that have failed.
    num_failed: u32,
    /// Time for which the training has waited for checkpoints since the last step that reported it.
    waited: Option<Duration>,
}

impl Saver {
    pub(crate) fn new(
        ranks: Ranks,
        checkpoints: CheckpointStore,
        writer: CheckpointWriter,
        context: Rc<StepContext>,
    ) -> Self {
        let best = BestCheckpoint::default();
        Self { ranks, checkpoints, writer, context, best, saved_at: None, num_failed: 0, waited: None }
    }

    /// Sets the best checkpoint of the run that resumes.
    pub(crate) fn resume_best(&mut self, best: Option<StepReward>) {
        self.best = BestCheckpoint::resumed(best);
        self.checkpoints.protect(self.best.step());
    }

    /// Registers a hook that commits a checkpoint when sampling ends, and returns the saver for sharing with
    /// the hook. Sampling is the longest part of a step, so that a checkpoint is committed sooner than at the
    /// end of the step.
    pub(crate) fn committing_after_sampling(self) -> Rc<RefCell<Self>> {
        let context = Rc::clone(&self.context);
        let saver = Rc::new(RefCell::new(self));
        let hook = Rc::downgrade(&saver);
        context.when_sampling_ends(move || match hook.upgrade() {
            Some(saver) => Ok(saver.borrow_mut().commit_if_done(Wait::None)?),
            None => Ok(()),
        });
        saver
    }

    /// Whether every rank writes its shard; otherwise the leader writes all shards.
    pub(crate) fn is_shared(&self) -> bool {
        self.writer.is_shared()
    }

    /// Adds to the time for which the training has waited for checkpoints.
    pub(crate) fn add_time(&mut self, time: Duration) {
        *self.waited.get_or_insert_default() += time;
    }

    /// Takes the time since the last call; `None` if the training has not waited.
    pub(crate) fn take_time(&mut self) -> Option<Duration> {
        self.waited.take()
    }

    /// Begins to save `parts` and, on the leader, `state`. Collective.
    pub(crate) fn begin(
        &mut self,
        position: SavedAt,
        state: Value,
        parts: Option<Vec<CheckpointShard>>,
    ) -> Result<(), TrainError> {
        let begun = self.writer.begin(&self.ranks, &self.checkpoints, position.1, state, parts);
        match begun {
            Ok(()) => self.saved_at = Some(position),
            Err(_) => self.best.failed(position.1),
        }
        begun
    }

    /// Commits the save in flight if all ranks have written their files. A failed save does not end the run:
    /// earlier checkpoints are unchanged, and the next save is attempted as scheduled.
    ///
    /// # Errors
    /// [`TrainError`], except for a failed save.
    pub(crate) fn commit_if_done(&mut self, wait: Wait) -> Result<(), TrainError> {
        let Some(step) = self.writer.step() else { return Ok(()) };
        let started = Instant::now();
        let settled = self.settle(wait);
        self.add_time(started.elapsed());
        self.tolerate(step, settled)
    }

    /// Reports a failed save and lets the training continue, until too many consecutive saves have failed: a
    /// failure of the run would then lose too much work. The user and the operator see each failed save.
    ///
    /// # Errors
    /// [`TrainError`], and [`TrainError::NoCheckpoints`] after the last failure that is tolerated.
    pub(crate) fn tolerate(&mut self, step: u64, result: Result<(), TrainError>) -> Result<(), TrainError> {
        let Err(TrainError::Checkpoint(source)) = result else { return result };
        self.num_failed += 1;
        let (num_failed, causes) = (self.num_failed, error_chain(&source));
        tracing::error!(
            error = causes,
            step,
            "a checkpoint could not be saved, training continues without it"
        );
        if num_failed >= MAX_FAILED_SAVES {
            return Err(TrainError::NoCheckpoints { num_failed, source: Box::new(source) });
        }
        if self.ranks.is_leader() {
            let saves = if num_failed == 1 { "checkpoint" } else { "checkpoints in a row" };
            self.context.watch().unsaved(Some(&format!("has lost {num_failed} {saves}: {causes}")));
        }
        Ok(())
    }

    /// Commits the checkpoint that is being saved.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`]; earlier checkpoints are unchanged.
    pub(crate) fn settle(&mut self, wait: Wait) -> Result<(), TrainError> {
        let step = self.writer.step();
        match self.writer.settle(&self.ranks, &mut self.checkpoints, wait) {
            Ok(Settled::Nothing | Settled::Later) => Ok(()),
            Ok(Settled::Committed) => {
                if std::mem::take(&mut self.num_failed) > 0 && self.ranks.is_leader() {
                    self.context.watch().unsaved(None);
                }
                if step.is_some_and(|step| self.best.committed(step)) {
                    self.checkpoints.protect(self.best.step());
                }
                if self.ranks.is_leader() {
                    self.report();
                }
                Ok(())
            }
            Err(error) => {
                // A later request may save this step again.
                self.saved_at = None;
                step.iter().for_each(|step| self.best.failed(*step));
                Err(error)
            }
        }
    }

    /// Reports the existing checkpoints to observers. If the folder cannot be listed, only this report is
    /// missing.
    pub(crate) fn report(&self) {
        match self.checkpoints.committed() {
            Ok(committed) => self.context.watch().checkpoints(&committed),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to list the checkpoints, so they are not reported"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
