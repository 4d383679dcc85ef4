//! Single rows as the trainer will see them, for people: what each becomes, and why it is left out.

use rlt_api::spec::{DataSpec, OverlongPrompts};
use rlt_core::types::Prompt;
use serde_json::Value;

use super::demonstration::DemonstrationReader;
use super::prompt::PromptReader;
use super::rows::{self, Row};
use super::tokenizer::Tokenizer;
use super::{DataError, Demonstration, Fitted, RowLocation, Split};

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

/// The first `num_rows` rows of a split as prompts. Only these are read.
///
/// # Errors
/// [`DataError`] of a file that cannot be opened; what is wrong with a row is its [`Fate`].
pub fn prompts(
    spec: &DataSpec,
    split: Split,
    tokenizer: &Tokenizer,
    num_rows: usize,
) -> Result<Vec<Preview<Prompt>>, DataError> {
    let strict = strict(spec);
    let (reader, strict) = (PromptReader::new(spec, tokenizer), PromptReader::new(&strict, tokenizer));
    let read = |row_idx, row: &Row| fate(reader.read(row_idx, row), || strict.read(row_idx, row).err());
    preview(spec, split, num_rows, read)
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
) -> Result<Vec<Preview<Demonstration>>, DataError> {
    let strict = strict(spec);
    let reader = DemonstrationReader::new(spec, tokenizer, max_tokens);
    let strict = DemonstrationReader::new(&strict, tokenizer, max_tokens);
    preview(spec, split, num_rows, |_, row| fate(reader.read(row), || strict.read(row).err()))
}

/// Under these settings a long row is an error, which knows the row's length.
fn strict(spec: &DataSpec) -> DataSpec {
    DataSpec { overlong_prompts: OverlongPrompts::Error, ..spec.clone() }
}

fn preview<T>(
    spec: &DataSpec,
    split: Split,
    num_rows: usize,
    mut read: impl FnMut(u64, &Row) -> Fate<T>,
) -> Result<Vec<Preview<T>>, DataError> {
    let mut previews = Vec::new();
    for (row_idx, row) in rows::open(spec, split)?.take(num_rows).enumerate() {
        previews.push(match row {
            Ok(row) => Preview { fate: read(row_idx as u64, &row), location: row.location },
            Err(error @ (DataError::Open { .. } | DataError::UnknownFormat { .. })) => return Err(error),
            Err(error) => {
                let location = RowLocation { file: None, number: row_idx as u64 + 1 };
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
            Some(DataError::TooLong { num_tokens, max_tokens, .. }) => {
                Fate::Filtered { num_tokens, max_tokens }
            }
            _ => Fate::Filtered { num_tokens: 0, max_tokens: 0 },
        },
        Err(error) => Fate::Broken(error),
    }
}

/// Text that a ground truth is shown as.
pub fn shown(ground_truth: &Value) -> String {
    ground_truth.as_str().map_or_else(|| ground_truth.to_string(), str::to_owned)
}
