//! From files and generated tasks to tokenized prompts, demonstrations and preferences, in an order that can
//! be resumed.
//!
//! ```text
//! DataSpec -> rows (JSONL, parquet, task) -> Dataset of prompts ------> PromptLoader -> batches
//!                                         -> Dataset of demonstrations -> DemonstrationLoader -> batches
//!                                         -> Dataset of preferences ---> PreferenceLoader -> batches
//! ```
//! Everything is read and checked before training starts: a bad row ends the run with its file and number,
//! not a step in the middle of the night. Rewards and rollouts live elsewhere.

mod demonstration;
mod error;
mod feed;
mod jsonl;
mod loader;
mod parquet;
mod preference;
pub mod preview;
mod prompt;
mod rows;
pub mod seeds;
mod task;
#[cfg(test)]
mod tests;
pub mod tokenizer;

use std::sync::Arc;

use rlt_api::spec::DataSpec;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;

use crate::data::tokenizer::Tokenizer;

pub use error::{DataError, RowLocation};
pub use feed::Data;
pub(crate) use feed::DataPosition;
pub use loader::{DemonstrationLoader, Loader, LoaderError, LoaderState, PreferenceLoader, PromptLoader};
pub use preference::{PreferenceFormat, PreferenceLimits};
pub use rlt_core::batch::Demonstration;
pub use rows::Split;

/// Rows of one split, tokenized and checked.
#[derive(Clone, Debug)]
pub struct Dataset<T> {
    items: Arc<[Arc<T>]>,
    locations: Arc<[RowLocation]>,
    counts: DatasetCounts,
    digest: String,
}

/// What became of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DatasetCounts {
    /// Rows that were read.
    pub num_rows: u64,
    /// Rows left out because they were longer than allowed.
    pub num_filtered: u64,
    /// Rows that were cut to the allowed length.
    pub num_truncated: u64,
}

impl Dataset<Prompt> {
    /// Reads, renders and tokenizes the prompts of a split; `data.maxTrainPrompts` and
    /// `data.maxHeldOutPrompts` count rows as they are read, before the filter.
    ///
    /// # Errors
    /// [`DataError`]. A split without files is an empty data set only when it is the held-out one.
    pub fn prompts(spec: &DataSpec, split: Split, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let reader = prompt::PromptReader::new(spec, tokenizer);
        Self::collect(spec, split, |row_idx, row| reader.read(row_idx, row))
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
        let reader = demonstration::DemonstrationReader::new(spec, tokenizer, max_tokens);
        Self::collect(spec, split, |_, row| reader.read(row))
    }
}

impl Dataset<PreferenceExample> {
    /// Reads the preferences of a split: TRL's columns `prompt`, `chosen` and `rejected`, or `completion` and
    /// `label`. A row with a completion that is longer than `limits` allow is left out and counted, or an
    /// error where `data.overlongPrompts` says so.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn preferences(
        spec: &DataSpec,
        split: Split,
        tokenizer: &Tokenizer,
        format: PreferenceFormat,
        limits: PreferenceLimits,
    ) -> Result<Self, DataError> {
        let reader = preference::PreferenceReader::new(spec, tokenizer, format, limits);
        Self::collect(spec, split, |row_idx, row| reader.read(row_idx, row))
    }

    /// The prompts alone.
    pub fn to_prompts(&self) -> Dataset<Prompt> {
        Dataset {
            items: self.items.iter().map(|example| Arc::clone(&example.prompt)).collect(),
            locations: Arc::clone(&self.locations),
            counts: self.counts,
            digest: self.digest.clone(),
        }
    }
}

impl<T> Dataset<T> {
    fn collect(
        spec: &DataSpec,
        split: Split,
        mut read: impl FnMut(u64, &rows::Row) -> Result<Fitted<T>, DataError>,
    ) -> Result<Self, DataError> {
        let (mut items, mut locations) = (Vec::new(), Vec::new());
        let mut counts = DatasetCounts::default();
        let mut digest = rows::RowDigest::default();
        for row in rows::open(spec, split)? {
            let row = row?;
            digest.update(&row);
            let fitted = read(counts.num_rows, &row)?;
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
        if items.is_empty() && (counts.num_rows > 0 || split == Split::Train) {
            return Err(DataError::Empty { split, num_filtered: counts.num_filtered });
        }
        Ok(Self { items: items.into(), locations: locations.into(), counts, digest: digest.finish() })
    }

    /// The items in the order of their files.
    pub fn items(&self) -> &Arc<[Arc<T>]> {
        &self.items
    }

    /// Where item `idx` was read from.
    pub fn location(&self, idx: usize) -> Option<&RowLocation> {
        self.locations.get(idx)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is nothing, which only a held-out split can be.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What became of the rows.
    pub fn counts(&self) -> DatasetCounts {
        self.counts
    }

    /// SHA-256 over the rows that were read, as lines of compact JSON: equal for equal data, whatever the
    /// file format or compression.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// An item after the length rule.
enum Fitted<T> {
    Whole(T),
    Truncated(T),
    TooLong,
}
