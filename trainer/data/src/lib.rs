//! Converts files and generated tasks to tokenized prompts, demonstrations and preferences, in an order that
//! can be resumed.
//!
//! ```text
//! DataSpec -> rows (JSONL, parquet, task) -> Dataset of prompts ------> PromptLoader -> batches
//!                                         -> Dataset of demonstrations -> DemonstrationLoader -> batches
//!                                         -> Dataset of preferences ---> PreferenceLoader -> batches
//!          -> rows, block by block -------> Stream of any of them -----> the same loaders
//! ```
//! All data are read and checked before the training starts: a bad row ends the run at once with its file and
//! number, and not hours later in a step. Only streamed data (`data.streaming`) are read and checked block by
//! block. Data sets of the hub have been downloaded to files before this package reads them.
//! Rewards and rollouts are in the trainer.

mod demonstration;
mod error;
mod files;
mod images;
mod loader;
mod mixture;
mod pipeline;
mod preference;
pub mod preview;
mod prompt;
mod rows;
pub mod seeds;
pub mod steps;
mod stream;
mod task;
#[cfg(test)]
mod tests;
pub mod tokenizer;
mod training_rows;
mod turns;

use std::sync::Arc;

use rlt_api::spec::DataSpec;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;

use crate::tokenizer::Tokenizer;

pub use error::{DataError, RowLocation};
use files::{integers, jsonl, parquet, sets};
pub use loader::draws::StepDraws;
pub use loader::{
    DemonstrationLoader, Loader, LoaderError, LoaderState, PreferenceLoader, PromptLoader, StreamOptions,
};
pub use pipeline::{DataPosition, Pipeline};
pub use preference::{PreferenceFormat, PreferenceLimits};
pub use rlt_core::batch::Demonstration;
use rows::Fitted;
pub use rows::{Place, Split};
pub use steps::StepFormat;
pub use stream::LanePosition;
pub use training_rows::TrainingRows;

/// Rows of one split, tokenized and checked.
#[derive(Clone, Debug)]
pub struct Dataset<T> {
    items: Arc<[Arc<T>]>,
    locations: Arc<[RowLocation]>,
    counts: DatasetCounts,
    digest: String,
    /// Number of items and weight of each data set; empty where none has a weight.
    weighted: Arc<[(u64, f64)]>,
}

/// Reads a row, given the specification of its data set and its index, as an item.
type ReadRow<T> = Box<dyn Fn(&DataSpec, u64, &rows::Row) -> Result<Fitted<T>, DataError>>;

/// Format of preference rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreferenceRows {
    /// One or two completions with labels: TRL's columns `prompt`, `chosen` and `rejected`, or `completion`
    /// and `label`.
    Completions(PreferenceFormat, PreferenceLimits),
    /// Completions with labelled steps: TRL's columns `prompt`, `completions` and `labels`.
    Steps(StepFormat),
}

/// Function that checks whether an item can be used. It gets the location of the item's row for its error.
pub type CheckItem<T> = Box<dyn Fn(&T, &RowLocation) -> Result<(), DataError>>;

/// Numbers of rows by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DatasetCounts {
    /// Number of rows that were read.
    pub num_rows: u64,
    /// Number of rows that were left out because they are too long.
    pub num_filtered: u64,
    /// Number of rows that were truncated to the maximum length.
    pub num_truncated: u64,
}

impl DatasetCounts {
    /// Returns the sums with `other`.
    pub fn plus(self, other: Self) -> Self {
        Self {
            num_rows: self.num_rows + other.num_rows,
            num_filtered: self.num_filtered + other.num_filtered,
            num_truncated: self.num_truncated + other.num_truncated,
        }
    }
}

fn prompt_reader(tokenizer: &Tokenizer) -> ReadRow<Prompt> {
    let tokenizer = tokenizer.clone();
    Box::new(move |spec, row_idx, row| prompt::PromptReader::new(spec, &tokenizer).read(row_idx, row))
}

fn demonstration_reader(tokenizer: &Tokenizer, max_tokens: usize) -> ReadRow<Demonstration> {
    let tokenizer = tokenizer.clone();
    Box::new(move |spec, _, row| {
        demonstration::DemonstrationReader::new(spec, &tokenizer, max_tokens).read(row)
    })
}

fn preference_reader(tokenizer: &Tokenizer, rows: &PreferenceRows) -> ReadRow<PreferenceExample> {
    let tokenizer = tokenizer.clone();
    match rows.clone() {
        PreferenceRows::Completions(format, limits) => Box::new(move |spec, row_idx, row| {
            preference::PreferenceReader::new(spec, &tokenizer, format, limits).read(row_idx, row)
        }),
        PreferenceRows::Steps(format) => Box::new(move |spec, row_idx, row| {
            steps::StepReader::new(spec, &tokenizer, &format).read(row_idx, row)
        }),
    }
}

impl Dataset<Prompt> {
    /// Reads, renders and tokenizes the prompts of a split. `data.maxTrainPrompts` and
    /// `data.maxHeldOutPrompts` limit the rows that are read, before the length filter.
    ///
    /// # Errors
    /// [`DataError`]. A held-out split without files is an empty data set, not an error.
    pub fn prompts(spec: &DataSpec, split: Split, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        Self::collect(spec, split, &prompt_reader(tokenizer))
    }
}

impl Dataset<Demonstration> {
    /// Reads the supervised examples of a split: conversations (`data.messagesKey`), or a prompt with a
    /// `response`, `completion` or `demonstration`. An example of more than `max_tokens` tokens is treated as
    /// `data.overlongPrompts` says.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn demonstrations(
        spec: &DataSpec,
        split: Split,
        tokenizer: &Tokenizer,
        max_tokens: usize,
    ) -> Result<Self, DataError> {
        Self::collect(spec, split, &demonstration_reader(tokenizer, max_tokens))
    }
}

impl Dataset<PreferenceExample> {
    /// Reads the preferences of a split, in the format of `rows`. A row with a completion that is too long is
    /// left out and counted, or an error if `data.overlongPrompts` is `Error`.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn preferences(
        spec: &DataSpec,
        split: Split,
        tokenizer: &Tokenizer,
        rows: &PreferenceRows,
    ) -> Result<Self, DataError> {
        Self::collect(spec, split, &preference_reader(tokenizer, rows))
    }

    /// Returns the prompts without the completions.
    pub fn to_prompts(&self) -> Dataset<Prompt> {
        Dataset {
            items: self.items.iter().map(|example| Arc::clone(&example.prompt)).collect(),
            locations: Arc::clone(&self.locations),
            counts: self.counts,
            digest: self.digest.clone(),
            weighted: Arc::clone(&self.weighted),
        }
    }
}

impl<T> Dataset<T> {
    fn collect(spec: &DataSpec, split: Split, read: &ReadRow<T>) -> Result<Self, DataError> {
        let (mut items, mut locations, mut weighted) = (Vec::new(), Vec::new(), Vec::new());
        let mut counts = DatasetCounts::default();
        let mut digest = rows::RowDigest::default();
        for (set_idx, set) in sets::specs(spec, split).iter().enumerate() {
            let first = items.len();
            for row in rows::open(set, split)? {
                let row = row?;
                digest.update(&row);
                let fitted = read(set, counts.num_rows, &row)?;
                counts.num_rows += 1;
                match fitted {
                    Fitted::Whole(item) => items.push(Arc::new(item)),
                    Fitted::Truncated(item) => {
                        counts.num_truncated += 1;
                        items.push(Arc::new(item));
                    }
                    Fitted::TooLong => {
                        counts.num_filtered += 1;
                        continue;
                    }
                }
                locations.push(row.location);
            }
            if let Some(weight) = sets::weight(set) {
                weighted.push(((items.len() - first) as u64, weight));
                digest.update_weight(weight);
                if items.len() == first {
                    return Err(DataError::EmptySet { split, set_idx });
                }
            }
        }
        if items.is_empty() && (counts.num_rows > 0 || split == Split::Train) {
            return Err(DataError::Empty { split, num_filtered: counts.num_filtered });
        }
        let (items, locations, weighted) = (items.into(), locations.into(), weighted.into());
        Ok(Self { items, locations, counts, digest: digest.finish(), weighted })
    }

    /// Items in the order of their files.
    pub fn items(&self) -> &Arc<[Arc<T>]> {
        &self.items
    }

    /// Location of the row that item `idx` was read from.
    pub fn location(&self, idx: usize) -> Option<&RowLocation> {
        self.locations.get(idx)
    }

    /// Number of items and weight of each data set; empty where none has a weight.
    pub(crate) fn weighted(&self) -> &[(u64, f64)] {
        &self.weighted
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items; only a held-out split can be empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Numbers of rows by outcome.
    pub fn counts(&self) -> DatasetCounts {
        self.counts
    }

    /// SHA-256 over the rows that were read, as lines of compact JSON, and over the weights. It is the same
    /// for equal data, whatever the file format or compression.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
