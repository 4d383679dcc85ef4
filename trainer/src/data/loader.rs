//! Never-ending batches in an order that is a function of seed and epoch.
//!
//! Epoch `e` visits item `Permutation::new(len, seed, e).get(i)` at position `i` (see
//! [`rlt_core::permutation`]), or item `i` without shuffling; with weights that is a draw of the
//! [mixture](super::mixture). A batch never spans two epochs: when fewer items are left in an epoch than
//! requested, they are skipped and the next epoch begins, as a data loader with `drop_last` does; only a data
//! set smaller than the batch is run through several times within one. The state is four numbers and a
//! digest.
//!
//! The length of a [stream](super::stream) is not known before its end: its batches span passes, and its
//! state is where each of its lanes stands.

use std::fmt;
use std::sync::Arc;

use rlt_api::spec::DataSpec;
use rlt_core::permutation::Permutation;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde::{Deserialize, Serialize};

use super::mixture::Mixture;
use super::stream::{LanePosition, Stream};
use super::{CheckItem, DataError, Dataset, Demonstration, ReadRow};

/// Batches of items.
pub struct Loader<T> {
    source: Source<T>,
    state: LoaderState,
}

/// Where items come from.
enum Source<T> {
    /// From memory.
    Kept { items: Arc<[Arc<T>]>, order: Option<Permutation>, mixture: Option<Mixture> },
    /// From files, when they are wanted.
    Streamed(Stream<T>),
}

/// Batches of prompts for the rollout.
pub type PromptLoader = Loader<Prompt>;

/// Batches of supervised examples.
pub type DemonstrationLoader = Loader<Demonstration>;

/// Batches of prompts with completions whose worth is known.
pub type PreferenceLoader = Loader<PreferenceExample>;

/// Where a loader stands; stored in checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// Digest of the rows behind the items.
    pub data_digest: String,
    /// Number of items.
    pub num_items: u64,
    /// Whether and how items are shuffled.
    pub shuffle_seed: Option<u64>,
    /// The epoch being read, from 0.
    pub epoch: u64,
    /// Items of this epoch that were handed out.
    pub position: u64,
    /// Where each lane of a stream stands; empty where items are in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LanePosition>,
}

/// How rows are streamed: `data.streaming`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Items of a block.
    pub block_rows: usize,
    /// Of the order; `None` for that of the files.
    pub seed: Option<u64>,
}

/// Why a loader cannot be made or resumed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoaderError {
    /// There is nothing to load.
    #[error("load batches: the data set is empty")]
    Empty,
    /// The state belongs to other data or another order.
    #[error("resume the data position: {field} was {saved} when it was saved and is {current} now")]
    OtherData {
        /// What differs.
        field: &'static str,
        /// In the state.
        saved: String,
        /// In this run.
        current: String,
    },
}

impl<T> Loader<T> {
    /// Starts at the first item of epoch 0.
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
        let source = Source::Kept { items: dataset.items().clone(), order: None, mixture };
        let mut loader = Self { source, state };
        loader.shuffle();
        Ok(loader)
    }

    /// The next `num_items` items.
    ///
    /// # Errors
    /// [`DataError`] of a row that is read now, which only streams do.
    pub fn next_batch(&mut self, num_items: usize) -> Result<Vec<Arc<T>>, DataError> {
        if let Source::Streamed(stream) = &mut self.source {
            return (0..num_items).map(|_| stream.next()).collect();
        }
        let left = self.state.num_items - self.state.position;
        if (num_items as u64) > left && self.state.position > 0 && num_items as u64 <= self.state.num_items {
            self.next_epoch();
        }
        Ok((0..num_items).filter_map(|_| self.next_item()).collect())
    }

    fn next_item(&mut self) -> Option<Arc<T>> {
        if self.state.position == self.state.num_items {
            self.next_epoch();
        }
        let LoaderState { position, epoch, .. } = self.state;
        self.state.position += 1;
        let Source::Kept { items, order, mixture } = &self.source else { return None };
        let draw = order.as_ref().and_then(|order| order.get(position)).unwrap_or(position);
        let idx = mixture.as_ref().map_or(draw, |mixture| mixture.item(epoch, draw));
        items.get(idx as usize).cloned()
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
        let stream = Stream::open(spec, block_rows, seed, (read, check))?;
        let state = LoaderState {
            data_digest: stream.digest().to_owned(),
            num_items: 0,
            shuffle_seed: seed,
            epoch: 0,
            position: 0,
            lanes: Vec::new(),
        };
        Ok(Self { source: Source::Streamed(stream), state })
    }

    /// Passes over the data that are complete; of a stream with weights those of all its data sets.
    pub fn epoch(&self) -> u64 {
        match &self.source {
            Source::Kept { .. } => self.state.epoch,
            Source::Streamed(stream) => stream.epoch(),
        }
    }

    /// Where the loader stands.
    pub fn state(&self) -> LoaderState {
        match &self.source {
            Source::Kept { .. } => self.state.clone(),
            Source::Streamed(stream) => {
                LoaderState { epoch: stream.epoch(), lanes: stream.position(), ..self.state.clone() }
            }
        }
    }

    /// Continues exactly where `state` was taken.
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
    /// The next `num_prompts` prompts: [`Loader::next_batch`] in the words of the step.
    ///
    /// # Errors
    /// As [`Loader::next_batch`].
    pub fn next_prompts(&mut self, num_prompts: usize) -> Result<Vec<Arc<Prompt>>, DataError> {
        self.next_batch(num_prompts)
    }
}
