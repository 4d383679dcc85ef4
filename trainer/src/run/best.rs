//! The best checkpoint, for runs with `checkpoint.keepBest`. A better checkpoint replaces it only once it is
//! committed.

use crate::run::StepReward;

/// The best committed checkpoint, and better ones whose save is in flight.
#[derive(Debug, Default)]
pub(crate) struct BestCheckpoint {
    kept: Option<StepReward>,
    /// Better checkpoints that are not committed yet, in the order of their saves.
    pending: Vec<StepReward>,
}

impl BestCheckpoint {
    /// Creates the state of a resumed run, whose best checkpoint is `kept`.
    pub(crate) fn resumed(kept: Option<StepReward>) -> Self {
        Self { kept, pending: Vec::new() }
    }

    /// Returns whether the reward of `evaluation` exceeds that of all checkpoints so far; its step is then
    /// pending until it is saved. The first of equal rewards is the best.
    pub(crate) fn take(&mut self, evaluation: StepReward) -> bool {
        let is_best = self.kept.iter().chain(&self.pending).all(|best| evaluation.reward > best.reward);
        if is_best {
            self.pending.push(evaluation);
        }
        is_best
    }

    /// Returns the best checkpoint as of the save of `step`, for the state of that save.
    pub(crate) fn after_save_of(&self, step: u64) -> Option<StepReward> {
        self.pending.iter().find(|best| best.step == step).copied().or(self.kept)
    }

    /// Records that the checkpoint of `step` is committed; returns whether it is the best now.
    pub(crate) fn committed(&mut self, step: u64) -> bool {
        let Some(idx) = self.pending.iter().position(|best| best.step == step) else { return false };
        self.kept = self.pending.drain(..=idx).next_back();
        true
    }

    /// Records that the checkpoint of `step` could not be saved, so that a later one may replace the best.
    pub(crate) fn failed(&mut self, step: u64) {
        self.pending.retain(|best| best.step != step);
    }

    /// Returns the step of the best checkpoint.
    pub(crate) fn step(&self) -> Option<u64> {
        self.kept.map(|best| best.step)
    }
}
