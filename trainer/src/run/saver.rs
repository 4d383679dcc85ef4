//! The checkpoints of a run: started after a step, committed when all ranks are done, reported to observers.
//! The content of a checkpoint is in [`crate::run::state`], writing by ranks in [`crate::run::saving`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::parallel::Ranks;
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;
use crate::run::saving::{Patience, Saving, Settled};
use crate::storage::checkpoint::{CheckpointStore, TensorPart};

/// Cold-start steps and steps of a checkpoint.
pub(crate) type SavedAt = (u64, u64);

/// Saves checkpoints beside the training.
pub(crate) struct Saver {
    ranks: Ranks,
    pub(crate) checkpoints: CheckpointStore,
    saving: Saving,
    context: Rc<StepContext>,
    /// The latest checkpoint, committed or in flight.
    pub(crate) saved_at: Option<SavedAt>,
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
        Self { ranks, checkpoints, saving, context, saved_at: None, waited: None }
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
        self.saving.begin((&self.ranks, &self.checkpoints), position.1, state, parts)?;
        self.saved_at = Some(position);
        Ok(())
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
        tolerate(step, settled)
    }

    /// Commits the checkpoint that is being saved.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`]; earlier checkpoints are as they were.
    pub(crate) fn settle(&mut self, patience: Patience) -> Result<(), TrainError> {
        match self.saving.settle((&self.ranks, &mut self.checkpoints), patience) {
            Ok(Settled::Nothing | Settled::Later) => Ok(()),
            Ok(Settled::Committed) => {
                if self.ranks.is_leader() {
                    self.report();
                }
                Ok(())
            }
            Err(error) => {
                // Another request for a checkpoint of that step makes a new one.
                self.saved_at = None;
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

/// Lets the training continue where all that failed is a checkpoint.
pub(crate) fn tolerate(step: u64, result: Result<(), TrainError>) -> Result<(), TrainError> {
    match result {
        Err(TrainError::Checkpoint(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, step, "a checkpoint could not be saved, training continues without it");
            Ok(())
        }
        result => result,
    }
}
