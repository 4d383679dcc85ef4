//! The checkpoints of a run: started after a step, committed when all ranks are done, reported to observers.
//! The content of a checkpoint is in [`crate::run::state`], writing by ranks in [`crate::run::saving`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::parallel::Ranks;
use crate::roles::step_context::StepContext;
use crate::run::StepReward;
use crate::run::best::BestCheckpoint;
use crate::run::error::TrainError;
use crate::run::saving::{Patience, Saving, Settled};
use crate::storage::checkpoint::{CheckpointStore, TensorPart};
use crate::storage::error_chain;

/// Cold-start steps and steps of a checkpoint.
pub(crate) type SavedAt = (u64, u64);

/// Saves in a row whose failure ends the run.
const MAX_FAILED_SAVES: u32 = 5;

/// Saves checkpoints beside the training.
pub(crate) struct Saver {
    ranks: Ranks,
    pub(crate) checkpoints: CheckpointStore,
    saving: Saving,
    context: Rc<StepContext>,
    /// The best checkpoint of a run that keeps it.
    pub(crate) best: BestCheckpoint,
    /// The latest checkpoint, committed or in flight.
    pub(crate) saved_at: Option<SavedAt>,
    /// Saves in a row that have failed.
    num_failed: u32,
    /// How long the training has waited for checkpoints, until a step reports it.
    waited: Option<Duration>,
}

impl Saver {
    pub(crate) fn new(
        ranks: Ranks,
        checkpoints: CheckpointStore,
        saving: Saving,
        context: Rc<StepContext>,
    ) -> Self {
        let best = BestCheckpoint::default();
        Self { ranks, checkpoints, saving, context, best, saved_at: None, num_failed: 0, waited: None }
    }

    /// Continues to keep the best checkpoint of the run that resumes.
    pub(crate) fn resume_best(&mut self, best: Option<StepReward>) {
        self.best = BestCheckpoint::resumed(best);
        self.checkpoints.protect(self.best.step());
    }

    /// Shares it with a hook that commits a checkpoint when sampling ends: sampling is the longest part of a
    /// step, and a checkpoint does not wait for the rest of it.
    pub(crate) fn committing_after_sampling(self) -> Rc<RefCell<Self>> {
        let context = Rc::clone(&self.context);
        let saver = Rc::new(RefCell::new(self));
        let hook = Rc::downgrade(&saver);
        context.when_sampling_ends(move || match hook.upgrade() {
            Some(saver) => Ok(saver.borrow_mut().commit_if_done(Patience::None)?),
            None => Ok(()),
        });
        saver
    }

    /// Whether every rank writes its shard; otherwise the leader writes all.
    pub(crate) fn is_shared(&self) -> bool {
        self.saving.is_shared()
    }

    /// Counts time as the checkpoint's.
    pub(crate) fn add_time(&mut self, time: Duration) {
        *self.waited.get_or_insert_default() += time;
    }

    /// The time since the last call, if any was spent.
    pub(crate) fn take_time(&mut self) -> Option<Duration> {
        self.waited.take()
    }

    /// Begins to save `parts` and, on the leader, `state`.
    pub(crate) fn begin(
        &mut self,
        position: SavedAt,
        state: Value,
        parts: Option<Vec<TensorPart>>,
    ) -> Result<(), TrainError> {
        let begun = self.saving.begin(&self.ranks, &self.checkpoints, position.1, state, parts);
        match begun {
            Ok(()) => self.saved_at = Some(position),
            Err(_) => self.best.failed(position.1),
        }
        begun
    }

    /// Commits the checkpoint that is being saved, if all ranks are done with it. One that could not be saved
    /// costs only itself: earlier ones are as they were, and the next one is tried at its time.
    ///
    /// # Errors
    /// [`TrainError`], other than that a checkpoint could not be saved.
    pub(crate) fn commit_if_done(&mut self, patience: Patience) -> Result<(), TrainError> {
        let Some(step) = self.saving.step() else { return Ok(()) };
        let started = Instant::now();
        let settled = self.settle(patience);
        self.add_time(started.elapsed());
        self.tolerate(step, settled)
    }

    /// Lets the training continue where all that failed is a checkpoint, until too many in a row have: then
    /// the work since the last one is not worth more of it. The user and the operator see each failure.
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
    /// [`TrainError::Checkpoint`]; earlier checkpoints are as they were.
    pub(crate) fn settle(&mut self, patience: Patience) -> Result<(), TrainError> {
        let step = self.saving.step();
        match self.saving.settle(&self.ranks, &mut self.checkpoints, patience) {
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
                // Another request for a checkpoint of that step makes a new one.
                self.saved_at = None;
                step.iter().for_each(|step| self.best.failed(*step));
                Err(error)
            }
        }
    }

    /// Reports which checkpoints there are. A folder that cannot be listed costs the report alone.
    pub(crate) fn report(&self) {
        match self.checkpoints.committed() {
            Ok(committed) => self.context.watch().checkpoints(&committed),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "checkpoints are not reported")
            }
        }
    }
}

#[cfg(test)]
mod tests;
