//! The data of a training: prompts, demonstrations, preferences and held-out rows, with the position in each.

use std::sync::Arc;

use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;

use super::{DataError, Dataset, DatasetCounts, Demonstration, Loader, LoaderError, LoaderState, StepDraws};

/// Training and held-out data, in an order that can be resumed.
pub struct Pipeline {
    /// Prompts to train on; `None` for algorithms that do not sample.
    pub prompts: Option<Loader<Prompt>>,
    /// Demonstrations of the cold start or of supervised training.
    pub demonstrations: Option<Loader<Demonstration>>,
    /// Preferences to train on; `None` for algorithms without a preference data set.
    pub preferences: Option<Loader<PreferenceExample>>,
    /// Prompts for evaluation; empty if there are none.
    pub held_out: Dataset<Prompt>,
    /// Preferences for evaluation; `None` for algorithms without a preference data set.
    pub held_out_preferences: Option<Dataset<PreferenceExample>>,
}

/// Positions of all loaders, as stored in checkpoints.
#[derive(Clone, Debug)]
pub struct DataPosition {
    /// Position in the prompts; `None` without a loader of prompts.
    pub prompts: Option<LoaderState>,
    /// Position in the demonstrations; `None` without a loader of demonstrations.
    pub demonstrations: Option<LoaderState>,
    /// Position in the preferences; `None` without a loader of preferences.
    pub preferences: Option<LoaderState>,
}

impl Pipeline {
    /// Returns the next prompts to sample from; `None` for algorithms that do not sample.
    ///
    /// # Errors
    /// [`DataError`] of a row that is read during the training.
    pub fn next_prompts(&mut self, num_prompts: usize) -> Result<Option<Vec<Arc<Prompt>>>, DataError> {
        self.prompts.as_mut().map(|loader| loader.next_batch(num_prompts)).transpose()
    }

    /// Returns the next demonstrations; `None` if the job has none.
    ///
    /// # Errors
    /// As [`Self::next_prompts`].
    pub fn next_demonstrations(
        &mut self,
        num_demonstrations: usize,
    ) -> Result<Option<Vec<Arc<Demonstration>>>, DataError> {
        self.demonstrations.as_mut().map(|loader| loader.next_batch(num_demonstrations)).transpose()
    }

    /// Returns the next prompts with their labelled completions; `None` if the job has none.
    ///
    /// # Errors
    /// As [`Self::next_prompts`].
    pub fn next_preferences(
        &mut self,
        num_examples: usize,
    ) -> Result<Option<Vec<Arc<PreferenceExample>>>, DataError> {
        self.preferences.as_mut().map(|loader| loader.next_batch(num_examples)).transpose()
    }

    /// Preferences for evaluation; empty if there are none.
    pub fn held_out_preferences(&self) -> &[Arc<PreferenceExample>] {
        self.held_out_preferences.as_ref().map_or(&[], |held_out| held_out.items())
    }

    /// Prompts for evaluation.
    pub fn held_out(&self) -> &[Arc<Prompt>] {
        self.held_out.items()
    }

    /// Number of completed epochs of the data trained on.
    pub fn epoch(&self) -> u64 {
        let demonstrations = || self.demonstrations.as_ref().map(Loader::epoch);
        let preferences = || self.preferences.as_ref().map(Loader::epoch);
        let prompts = self.prompts.as_ref().map(Loader::epoch);
        prompts.or_else(preferences).or_else(demonstrations).unwrap_or(0)
    }

    /// Numbers of streamed rows that were read so far; 0 if all rows are in memory.
    pub fn streamed_counts(&self) -> DatasetCounts {
        let of_kinds = [
            self.prompts.as_ref().map(Loader::streamed_counts),
            self.demonstrations.as_ref().map(Loader::streamed_counts),
            self.preferences.as_ref().map(Loader::streamed_counts),
        ];
        of_kinds.into_iter().flatten().fold(DatasetCounts::default(), DatasetCounts::plus)
    }

    /// Begins a step: its rows are counted from here on ([`Self::step_draws`]).
    pub fn begin_step(&mut self) {
        self.prompts.iter_mut().for_each(Loader::begin_step);
        self.demonstrations.iter_mut().for_each(Loader::begin_step);
        self.preferences.iter_mut().for_each(Loader::begin_step);
    }

    /// Numbers of rows that the step has drawn so far.
    pub fn step_draws(&self) -> StepDraws {
        let of_kinds = [
            self.prompts.as_ref().map(Loader::step_draws),
            self.demonstrations.as_ref().map(Loader::step_draws),
            self.preferences.as_ref().map(Loader::step_draws),
        ];
        of_kinds.into_iter().flatten().fold(StepDraws::default(), StepDraws::plus)
    }

    /// Positions of all loaders.
    pub fn position(&self) -> DataPosition {
        DataPosition {
            prompts: self.prompts.as_ref().map(Loader::state),
            demonstrations: self.demonstrations.as_ref().map(Loader::state),
            preferences: self.preferences.as_ref().map(Loader::state),
        }
    }

    /// Continues from `position`.
    ///
    /// # Errors
    /// [`LoaderError::OtherData`].
    pub fn resume(&mut self, position: &DataPosition) -> Result<(), LoaderError> {
        if let (Some(loader), Some(position)) = (&mut self.prompts, &position.prompts) {
            loader.resume(position)?;
        }
        if let (Some(loader), Some(position)) = (&mut self.demonstrations, &position.demonstrations) {
            loader.resume(position)?;
        }
        if let (Some(loader), Some(position)) = (&mut self.preferences, &position.preferences) {
            loader.resume(position)?;
        }
        Ok(())
    }
}
