//! Never-ending batches in an order that is a function of seed and epoch.
//!
//! Epoch `e` visits item `Permutation::new(len, seed, e).get(i)` at position `i` (see
//! [`rlt_core::permutation`]), or item `i` without shuffling. A batch never spans two epochs: when fewer
//! items are left in an epoch than asked for, they are skipped and the next epoch begins, as a data loader
//! with `drop_last` does; only a data set smaller than the batch is run through several times within one. The
//! state is four numbers and a digest.

use std::sync::Arc;

use rlt_core::permutation::Permutation;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde::{Deserialize, Serialize};

use super::{Dataset, Demonstration};

/// Batches of items.
#[derive(Clone, Debug)]
pub struct Loader<T> {
    items: Arc<[Arc<T>]>,
    state: LoaderState,
    order: Option<Permutation>,
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
        let state = LoaderState {
            data_digest: dataset.digest().to_owned(),
            num_items: dataset.len() as u64,
            shuffle_seed: shuffle.then_some(seed),
            epoch: 0,
            position: 0,
        };
        let mut loader = Self { items: dataset.items().clone(), state, order: None };
        loader.shuffle();
        Ok(loader)
    }

    /// The next `num_items` items.
    pub fn next_batch(&mut self, num_items: usize) -> Vec<Arc<T>> {
        let left = self.state.num_items - self.state.position;
        if (num_items as u64) > left && self.state.position > 0 && num_items as u64 <= self.state.num_items {
            self.next_epoch();
        }
        (0..num_items).map(|_| self.next_item()).collect()
    }

    fn next_item(&mut self) -> Arc<T> {
        if self.state.position == self.state.num_items {
            self.next_epoch();
        }
        let position = self.state.position;
        self.state.position += 1;
        let idx = self.order.as_ref().and_then(|order| order.get(position)).unwrap_or(position);
        self.items[idx as usize].clone()
    }

    fn next_epoch(&mut self) {
        self.state.epoch += 1;
        self.state.position = 0;
        self.shuffle();
    }

    fn shuffle(&mut self) {
        let LoaderState { num_items, epoch, shuffle_seed, .. } = self.state;
        self.order = shuffle_seed.map(|seed| Permutation::new(num_items, seed, epoch));
    }

    /// Where the loader stands.
    pub fn state(&self) -> &LoaderState {
        &self.state
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
        let position = state.position.min(state.num_items);
        self.state = LoaderState { position, ..state.clone() };
        self.shuffle();
        Ok(())
    }
}

impl PromptLoader {
    /// The next `num_prompts` prompts: [`Loader::next_batch`] in the words of the step.
    pub fn next_prompts(&mut self, num_prompts: usize) -> Vec<Arc<Prompt>> {
        self.next_batch(num_prompts)
    }
}
