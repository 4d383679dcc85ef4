//! Previews of single rows for display: what each row becomes in a training, and why it is left out.

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

/// A row, as the training would use it.
#[derive(Debug)]
pub struct Preview<T> {
    /// Location of the row.
    pub location: RowLocation,
    /// Use of the row.
    pub outcome: RowOutcome<T>,
}

/// Use of a row in a training.
#[derive(Debug)]
pub enum RowOutcome<T> {
    /// The row is used.
    Kept(T),
    /// The row is used, truncated to the maximum length.
    Truncated(T),
    /// The row is left out, because it is too long.
    Filtered {
        /// Number of tokens of the row, or of the column that is too long; 0 if it is not known.
        num_tokens: usize,
        /// Maximum number of tokens.
        max_tokens: usize,
    },
    /// The row is invalid; a training would end with this error.
    Broken(DataError),
}

/// Previews the first `num_rows` rows of each data set of a split as prompts. Further rows are not read.
///
/// # Errors
/// [`DataError`] of a file that cannot be opened. A fault of a row is its [`RowOutcome`].
pub fn prompts(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    num_rows: usize,
) -> Result<Vec<Vec<Preview<Prompt>>>, DataError> {
    preview(spec, split, num_rows, &prompt_reader(tokenizer))
}

/// Previews rows like [`prompts`], as supervised examples of at most `max_tokens` tokens.
///
/// # Errors
/// As [`prompts`].
pub fn demonstrations(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    num_rows: usize,
    max_tokens: usize,
) -> Result<Vec<Vec<Preview<Demonstration>>>, DataError> {
    preview(spec, split, num_rows, &demonstration_reader(tokenizer, max_tokens))
}

/// Previews rows like [`prompts`], as preferences.
///
/// # Errors
/// As [`prompts`].
pub fn preferences(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    num_rows: usize,
    format: &PreferenceRows,
) -> Result<Vec<Vec<Preview<PreferenceExample>>>, DataError> {
    preview(spec, split, num_rows, &preference_reader(tokenizer, format))
}

/// Returns `spec` with settings that make a row that is too long an error, which states the row's length.
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
                outcome: outcome(read(set, row_idx, &row), || read(&strict, row_idx, &row).err()),
                location: row.location,
            },
            Err(error @ (DataError::Open { .. } | DataError::UnknownFormat { .. })) => return Err(error),
            Err(error) => {
                let location = RowLocation { file: None, number: row_idx + 1 };
                Preview {
                    location: error.location().cloned().unwrap_or(location),
                    outcome: RowOutcome::Broken(error),
                }
            }
        });
    }
    Ok(previews)
}

fn outcome<T>(read: Result<Fitted<T>, DataError>, why: impl FnOnce() -> Option<DataError>) -> RowOutcome<T> {
    match read {
        Ok(Fitted::Whole(item)) => RowOutcome::Kept(item),
        Ok(Fitted::Truncated(item)) => RowOutcome::Truncated(item),
        Ok(Fitted::TooLong) => match why() {
            Some(
                DataError::TooLong { num_tokens, max_tokens, .. }
                | DataError::ColumnTooLong { num_tokens, max_tokens, .. },
            ) => RowOutcome::Filtered { num_tokens, max_tokens },
            _ => RowOutcome::Filtered { num_tokens: 0, max_tokens: 0 },
        },
        Err(error) => RowOutcome::Broken(error),
    }
}

/// Text of a ground truth for display.
pub fn shown(ground_truth: &Value) -> String {
    ground_truth.as_str().map_or_else(|| ground_truth.to_string(), str::to_owned)
}
