//! Rows to train on: read into memory before the training, or streamed (`data.streaming`).

use rlt_api::spec::DataSpec;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;

use super::tokenizer::Tokenizer;
use super::{
    CheckItem, DataError, Dataset, Demonstration, Loader, LoaderError, PreferenceRows, ReadRow, Split,
    StreamOptions, demonstration_reader, preference_reader, prompt_reader,
};

/// Rows to train on, in memory or streamed.
pub enum TrainingRows<T> {
    /// All rows, read before the training.
    InMemory(Dataset<T>),
    /// Rows that are read during the training.
    Streamed(Box<Loader<T>>),
}

impl TrainingRows<Prompt> {
    /// Opens the prompts of a training. With `options` they are streamed, and each is passed to the check
    /// that `check` returns.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn prompts(
        spec: &DataSpec,
        options: Option<StreamOptions>,
        tokenizer: &Tokenizer,
        check: impl FnOnce() -> Result<CheckItem<Prompt>, DataError>,
    ) -> Result<Self, DataError> {
        Self::open(spec, options, prompt_reader(tokenizer), check)
    }
}

impl TrainingRows<Demonstration> {
    /// Opens supervised examples of at most `max_tokens` tokens, see [`Dataset::demonstrations`].
    ///
    /// # Errors
    /// [`DataError`].
    pub fn demonstrations(
        spec: &DataSpec,
        options: Option<StreamOptions>,
        tokenizer: &Tokenizer,
        max_tokens: usize,
    ) -> Result<Self, DataError> {
        Self::open(spec, options, demonstration_reader(tokenizer, max_tokens), no_check)
    }
}

impl TrainingRows<PreferenceExample> {
    /// Opens preferences, see [`Dataset::preferences`].
    ///
    /// # Errors
    /// [`DataError`].
    pub fn preferences(
        spec: &DataSpec,
        options: Option<StreamOptions>,
        tokenizer: &Tokenizer,
        rows: &PreferenceRows,
    ) -> Result<Self, DataError> {
        Self::open(spec, options, preference_reader(tokenizer, rows), no_check)
    }
}

fn no_check<T: 'static>() -> Result<CheckItem<T>, DataError> {
    Ok(Box::new(|_, _| Ok(())))
}

impl<T> TrainingRows<T> {
    fn open(
        spec: &DataSpec,
        options: Option<StreamOptions>,
        read: ReadRow<T>,
        check: impl FnOnce() -> Result<CheckItem<T>, DataError>,
    ) -> Result<Self, DataError> {
        Ok(match options {
            None => Self::InMemory(Dataset::collect(spec, Split::Train, &read)?),
            Some(options) => Self::Streamed(Box::new(Loader::stream(spec, options, read, check()?)?)),
        })
    }

    /// Rows in memory; `None` if they are streamed.
    pub fn in_memory(&self) -> Option<&Dataset<T>> {
        match self {
            Self::InMemory(dataset) => Some(dataset),
            Self::Streamed(_) => None,
        }
    }

    /// Converts the rows to a loader. The order of a stream was chosen when it was opened, so `shuffle` and
    /// `seed` are ignored for it.
    ///
    /// # Errors
    /// [`LoaderError::Empty`].
    pub fn in_order(self, shuffle: bool, seed: u64) -> Result<Loader<T>, LoaderError> {
        match self {
            Self::InMemory(dataset) => Loader::new(&dataset, shuffle, seed),
            Self::Streamed(loader) => Ok(*loader),
        }
    }
}
