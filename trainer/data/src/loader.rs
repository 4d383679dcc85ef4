//! Endless batches of items, in an order determined by the seed and the epoch.
//!
//! Epoch `e` visits item `Permutation::new(len, seed, e).get(i)` at position `i` (see
//! [`rlt_core::permutation`]), or item `i` without shuffling. If data sets have weights, that number is a
//! draw of the [mixture](super::mixture) instead of an item. A batch never spans two epochs: when fewer items
//! are left in an epoch than requested, they are skipped and the next epoch begins, as in a data loader with
//! `drop_last`. Only a data set smaller than the batch is repeated within one batch. The state is four
//! numbers and a digest.
//!
//! The length of a [stream](super::stream) is not known before its end, so its batches span passes. Its state
//! is the position of each of its lanes.

pub(super) mod draws;

use std::fmt;
use std::sync::Arc;

use rlt_api::spec::DataSpec;
use rlt_core::permutation::Permutation;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde::{Deserialize, Serialize};

use self::draws::{Drawn, StepDraws, StepRows};
use super::mixture::Mixture;
use super::stream::{LanePosition, Stream};
use super::{CheckItem, DataError, Dataset, DatasetCounts, Demonstration, ReadRow};

/// Batches of items, without end.
pub struct Loader<T> {
    source: Source<T>,
    state: LoaderState,
    step_rows: StepRows,
}

/// Source of the items.
enum Source<T> {
    /// Items in memory, of which `num_truncated` were truncated to the maximum length.
    Kept { items: Arc<[Arc<T>]>, num_truncated: u64, order: Option<Permutation>, mixture: Option<Mixture> },
    /// Items that are read from files on demand.
    Streamed(Stream<T>),
}

/// Batches of prompts for the rollout.
pub type PromptLoader = Loader<Prompt>;

/// Batches of supervised examples.
pub type DemonstrationLoader = Loader<Demonstration>;

/// Batches of prompts with labelled completions.
pub type PreferenceLoader = Loader<PreferenceExample>;

/// Position of a loader; stored in checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// Digest of the data from which the items were read, in hexadecimal digits.
    pub data_digest: String,
    /// Number of items; 0 for a stream.
    pub num_items: u64,
    /// Seed of the order; `None` without shuffling.
    pub shuffle_seed: Option<u64>,
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Number of items of this epoch that were returned.
    pub position: u64,
    /// Position of each lane of a stream; empty if the items are in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LanePosition>,
}

/// Options of streamed rows: `data.streaming`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Number of items per block.
    pub block_rows: usize,
    /// Seed of the order; `None` for the order of the files.
    pub seed: Option<u64>,
}

/// A loader cannot be created or resumed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoaderError {
    /// The data set has no items.
    #[error("load batches: the data set is empty")]
    Empty,
    /// The state was saved with other data or another order.
    #[error("resume the data position: {field} was {saved} when it was saved and is {current} now")]
    OtherData {
        /// Description of the value that differs.
        field: &'static str,
        /// Value in the saved state.
        saved: String,
        /// Value in this run.
        current: String,
    },
}

impl<T> Loader<T> {
    /// Creates a loader at the first item of epoch 0.
    ///
    /// # Errors
    /// [`LoaderError::Empty`].
    pub fn new(dataset: &Dataset<T>, shuffle: bool, seed: u64) -> Result<Self, LoaderError> {
        if dataset.is_empty() {
            return Err(LoaderError::Empty);
        }
        let shuffle_seed = shuffle.then_some(seed);
        let state = LoaderState {
            data_digest: dataset.digest().to_owned(),
            num_items: dataset.len() as u64,
            shuffle_seed,
            epoch: 0,
            position: 0,
            lanes: Vec::new(),
        };
        let weighted = dataset.weighted();
        let mixture = (!weighted.is_empty()).then(|| Mixture::new(weighted, shuffle_seed));
        let num_truncated = dataset.counts().num_truncated;
        let source = Source::Kept { items: dataset.items().clone(), num_truncated, order: None, mixture };
        let mut loader = Self { source, state, step_rows: StepRows::default() };
        loader.shuffle();
        Ok(loader)
    }

    /// Returns the next `num_items` items.
    ///
    /// # Errors
    /// [`DataError`] of a row that is read now, which happens only for streams.
    pub fn next_batch(&mut self, num_items: usize) -> Result<Vec<Arc<T>>, DataError> {
        if let Source::Streamed(stream) = &mut self.source {
            let batch = (0..num_items).map(|_| stream.next()).collect::<Result<Vec<_>, DataError>>()?;
            return Ok(self.step_rows.count(batch));
        }
        let left = self.state.num_items - self.state.position;
        if (num_items as u64) > left && self.state.position > 0 && num_items as u64 <= self.state.num_items {
            self.next_epoch();
        }
        let batch: Vec<Drawn<T>> = (0..num_items).filter_map(|_| self.next_item()).collect();
        Ok(self.step_rows.count(batch))
    }

    fn next_item(&mut self) -> Option<Drawn<T>> {
        if self.state.position == self.state.num_items {
            self.next_epoch();
        }
        let LoaderState { position, epoch, .. } = self.state;
        self.state.position += 1;
        let Source::Kept { items, order, mixture, .. } = &self.source else { return None };
        let draw = order.as_ref().and_then(|order| order.get(position)).unwrap_or(position);
        let idx = mixture.as_ref().map_or(draw, |mixture| mixture.item(epoch, draw));
        items.get(idx as usize).map(|item| Drawn { row_idx: idx, item: Arc::clone(item) })
    }

    fn next_epoch(&mut self) {
        self.state.epoch += 1;
        self.state.position = 0;
        self.shuffle();
    }

    fn shuffle(&mut self) {
        let LoaderState { num_items, epoch, shuffle_seed, .. } = self.state;
        if let Source::Kept { order, .. } = &mut self.source {
            *order = shuffle_seed.map(|seed| Permutation::new(num_items, seed, epoch));
        }
    }

    pub(super) fn stream(
        spec: &DataSpec,
        options: StreamOptions,
        read: ReadRow<T>,
        check: CheckItem<T>,
    ) -> Result<Self, DataError> {
        let StreamOptions { block_rows, seed } = options;
        let stream = Stream::open(spec, block_rows, seed, read, check)?;
        let state = LoaderState {
            data_digest: stream.digest().to_owned(),
            num_items: 0,
            shuffle_seed: seed,
            epoch: 0,
            position: 0,
            lanes: Vec::new(),
        };
        Ok(Self { source: Source::Streamed(stream), state, step_rows: StepRows::default() })
    }

    /// Begins a step: its rows are counted from here on.
    pub(crate) fn begin_step(&mut self) {
        self.step_rows = StepRows::default();
    }

    /// Numbers of rows that the step has drawn so far.
    pub(crate) fn step_draws(&self) -> StepDraws {
        self.step_rows.draws()
    }

    /// Number of completed passes over the data; for a stream with weights, over all of its data sets.
    pub fn epoch(&self) -> u64 {
        match &self.source {
            Source::Kept { .. } => self.state.epoch,
            Source::Streamed(stream) => stream.epoch(),
        }
    }

    /// Numbers of streamed rows that were read so far; 0 if the items are in memory.
    pub(crate) fn streamed_counts(&self) -> DatasetCounts {
        match &self.source {
            Source::Kept { .. } => DatasetCounts::default(),
            Source::Streamed(stream) => stream.counts(),
        }
    }

    /// Items in memory, in the order of their files; `None` if they are streamed.
    pub fn in_memory(&self) -> Option<&[Arc<T>]> {
        match &self.source {
            Source::Kept { items, .. } => Some(items),
            Source::Streamed(_) => None,
        }
    }

    /// Number of the items in memory that were truncated to the maximum length; 0 for a stream.
    pub fn num_truncated(&self) -> u64 {
        match &self.source {
            Source::Kept { num_truncated, .. } => *num_truncated,
            Source::Streamed(_) => 0,
        }
    }

    /// Position of the loader.
    pub fn state(&self) -> LoaderState {
        match &self.source {
            Source::Kept { .. } => self.state.clone(),
            Source::Streamed(stream) => {
                LoaderState { epoch: stream.epoch(), lanes: stream.position(), ..self.state.clone() }
            }
        }
    }

    /// Continues from `state`.
    ///
    /// # Errors
    /// [`LoaderError::OtherData`] when the data, the shuffling or the seed differ.
    pub fn resume(&mut self, state: &LoaderState) -> Result<(), LoaderError> {
        let now = &self.state;
        let order = |seed: Option<u64>| seed.map_or("unshuffled".to_owned(), |seed| format!("seed {seed}"));
        let checks = [
            ("the number of items", state.num_items.to_string(), now.num_items.to_string()),
            ("the data's digest", state.data_digest.clone(), now.data_digest.clone()),
            ("the order", order(state.shuffle_seed), order(now.shuffle_seed)),
        ];
        if let Some((field, saved, current)) = checks.into_iter().find(|(_, saved, now)| saved != now) {
            return Err(LoaderError::OtherData { field, saved, current });
        }
        if let Source::Streamed(stream) = &mut self.source {
            stream.resume(&state.lanes);
            return Ok(());
        }
        let position = state.position.min(state.num_items);
        self.state = LoaderState { position, ..state.clone() };
        self.shuffle();
        Ok(())
    }
}

impl<T> fmt::Debug for Loader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loader at {:?}", self.state())
    }
}

impl PromptLoader {
    /// Returns the next `num_prompts` prompts, see [`Loader::next_batch`].
    ///
    /// # Errors
    /// As [`Loader::next_batch`].
    pub fn next_prompts(&mut self, num_prompts: usize) -> Result<Vec<Arc<Prompt>>, DataError> {
        self.next_batch(num_prompts)
    }
}
