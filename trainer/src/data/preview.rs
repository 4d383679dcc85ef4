//! Single rows as the trainer will see them, for people: what each becomes, and why it is left out.

use rlt_api::spec::{DataSpec, OverlongPrompts};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde_json::Value;

use super::rows;
use super::tokenizer::Tokenizer;
use super::{
    DataError, Demonstration, Fitted, PreferenceRows, ReadRow, RowLocation, Split, demonstration_reader,
    preference_reader, prompt_reader, sets,
};

/// What a row becomes.
#[derive(Debug)]
pub struct Preview<T> {
    /// Where it is.
    pub location: RowLocation,
    /// The row.
    pub fate: Fate<T>,
}

/// Whether a row is used.
#[derive(Debug)]
pub enum Fate<T> {
    /// It is used.
    Kept(T),
    /// It is used, cut to the allowed length.
    Truncated(T),
    /// It is left out, because it is longer than allowed.
    Filtered {
        /// Tokens that it has.
        num_tokens: usize,
        /// Tokens that it may have.
        max_tokens: usize,
    },
    /// A training would end here.
    Broken(DataError),
}

/// The first `num_rows` rows of each data set of a split as prompts. Only these are read.
///
/// # Errors
/// [`DataError`] of a file that cannot be opened; what is wrong with a row is its [`Fate`].
pub fn prompts(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    num_rows: usize,
) -> Result<Vec<Vec<Preview<Prompt>>>, DataError> {
    preview(spec, split, num_rows, &prompt_reader(tokenizer))
}

/// The same as supervised examples of at most `max_tokens` tokens.
///
/// # Errors
/// As [`prompts`].
pub fn demonstrations(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    (num_rows, max_tokens): (usize, usize),
) -> Result<Vec<Vec<Preview<Demonstration>>>, DataError> {
    preview(spec, split, num_rows, &demonstration_reader(tokenizer, max_tokens))
}

/// The same as preferences.
///
/// # Errors
/// As [`prompts`].
pub fn preferences(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    (num_rows, format): (usize, &PreferenceRows),
) -> Result<Vec<Vec<Preview<PreferenceExample>>>, DataError> {
    preview(spec, split, num_rows, &preference_reader(tokenizer, format))
}

/// Under these settings a long row is an error, which knows the row's length.
fn strict(spec: &DataSpec) -> DataSpec {
    DataSpec { overlong_prompts: OverlongPrompts::Error, ..spec.clone() }
}

fn preview<T>(
    spec: &DataSpec,
    split: Split,
    num_rows: usize,
    read: &ReadRow<T>,
) -> Result<Vec<Vec<Preview<T>>>, DataError> {
    let sets = sets::specs(spec, split);
    sets.iter().map(|set| preview_set(set, split, num_rows, read)).collect()
}

fn preview_set<T>(
    set: &DataSpec,
    split: Split,
    num_rows: usize,
    read: &ReadRow<T>,
) -> Result<Vec<Preview<T>>, DataError> {
    let strict = strict(set);
    let mut previews = Vec::new();
    for (row_idx, row) in (0..).zip(rows::open(set, split)?.take(num_rows)) {
        previews.push(match row {
            Ok(row) => Preview {
                fate: fate(read(set, row_idx, &row), || read(&strict, row_idx, &row).err()),
                location: row.location,
            },
            Err(error @ (DataError::Open { .. } | DataError::UnknownFormat { .. })) => return Err(error),
            Err(error) => {
                let location = RowLocation { file: None, number: row_idx + 1 };
                Preview { location: error.location().cloned().unwrap_or(location), fate: Fate::Broken(error) }
            }
        });
    }
    Ok(previews)
}

fn fate<T>(read: Result<Fitted<T>, DataError>, why: impl FnOnce() -> Option<DataError>) -> Fate<T> {
    match read {
        Ok(Fitted::Whole(item)) => Fate::Kept(item),
        Ok(Fitted::Truncated(item)) => Fate::Truncated(item),
        Ok(Fitted::TooLong) => match why() {
            Some(
                DataError::TooLong { num_tokens, max_tokens, .. }
                | DataError::ColumnTooLong { num_tokens, max_tokens, .. },
            ) => Fate::Filtered { num_tokens, max_tokens },
            _ => Fate::Filtered { num_tokens: 0, max_tokens: 0 },
        },
        Err(error) => Fate::Broken(error),
    }
}

/// Text that a ground truth is shown as.
pub fn shown(ground_truth: &Value) -> String {
    ground_truth.as_str().map_or_else(|| ground_truth.to_string(), str::to_owned)
}
