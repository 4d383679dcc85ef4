//! Errors of the data, with the row where they occurred.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Split;
use super::images::ImageError;
use crate::tokenizer::TokenizerError;

/// Location of a row of a file, or of a problem of a generated task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// Path of the file; `None` for a generated task.
    pub file: Option<Arc<Path>>,
    /// Number of the line (JSONL) or row (parquet, JSON array, task), from 1.
    pub number: u64,
}

impl fmt::Display for RowLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(formatter, "{} row {}", file.display(), self.number),
            None => write!(formatter, "generated problem {}", self.number),
        }
    }
}

impl DataError {
    /// Whether a file could not be opened or read, which may be temporary. A file that is not a regular file,
    /// is too long, or is not UTF-8 does not count, because a retry cannot help.
    pub fn is_io(&self) -> bool {
        match self {
            Self::Open { source, .. } | Self::Read { source, .. } => {
                !rlt_files::is_refusal(source) && source.kind() != std::io::ErrorKind::InvalidData
            }
            _ => false,
        }
    }

    /// Location of the invalid row, where the error has one.
    pub fn location(&self) -> Option<&RowLocation> {
        match self {
            Self::Read { location, .. }
            | Self::Json { location, .. }
            | Self::Parquet { location, .. }
            | Self::MissingColumn { location, .. }
            | Self::NullColumn { location, .. }
            | Self::WrongType { location, .. }
            | Self::Tokenize { location, .. }
            | Self::EmptyPrompt { location }
            | Self::TooLong { location, .. }
            | Self::UnstableTemplate { location, .. }
            | Self::Images { location, .. }
            | Self::NothingToLearn { location } => Some(location),
            _ => None,
        }
    }
}

/// Data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is missing or unreadable.
    #[error("open data file {}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The file's name has an unknown extension.
    #[error("read {}: expected a name that ends in .jsonl, .json or .parquet", path.display())]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file could not be read to its end.
    #[error("read {location}")]
    Read {
        /// Location of the row.
        location: RowLocation,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A line is not a JSON object.
    #[error("parse {location}: expected one JSON object")]
    Json {
        /// Location of the line.
        location: RowLocation,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// The parquet file or one of its rows cannot be decoded.
    #[error("decode {location}")]
    Parquet {
        /// Location of the row.
        location: RowLocation,
        /// Error of the parquet decoder.
        #[source]
        source: ::parquet::errors::ParquetError,
    },
    /// A column is missing.
    #[error("read {location}: expected a column {column:?}, found {found:?}")]
    MissingColumn {
        /// Location of the row.
        location: RowLocation,
        /// Name of the column; a dotted path for a nested field.
        column: String,
        /// Names of the columns that the row has.
        found: Vec<String>,
    },
    /// A column has no value.
    #[error("read {location}: column {column:?} is null, expected a value; leave such rows out of the file")]
    NullColumn {
        /// Location of the row.
        location: RowLocation,
        /// Name of the column.
        column: String,
    },
    /// A column has the wrong type.
    #[error("read {location}: column {column:?} is {got}, expected {expected}")]
    WrongType {
        /// Location of the row.
        location: RowLocation,
        /// Name of the column.
        column: String,
        /// Value that was found, shortened.
        got: String,
        /// Description of the expected value.
        expected: &'static str,
    },
    /// A row could not be rendered or tokenized.
    #[error("tokenize {location}")]
    Tokenize {
        /// Location of the row.
        location: RowLocation,
        /// Error of the tokenizer.
        #[source]
        source: TokenizerError,
    },
    /// The prompt has no tokens.
    #[error("tokenize {location}: the prompt is empty")]
    EmptyPrompt {
        /// Location of the row.
        location: RowLocation,
    },
    /// A prompt or demonstration is too long and `overlongPrompts` is `Error`.
    #[error(
        "tokenize {location}: {num_tokens} tokens{}, expected at most {max_tokens}", of_images(*num_image_tokens)
    )]
    TooLong {
        /// Location of the row.
        location: RowLocation,
        /// Number of tokens of the row.
        num_tokens: usize,
        /// Number of image tokens among them.
        num_image_tokens: usize,
        /// Maximum number of tokens.
        max_tokens: usize,
    },
    /// A column of a row is too long and `overlongPrompts` is `Error`.
    #[error("tokenize {location}: column {column:?} has {num_tokens} tokens, expected at most {max_tokens}")]
    ColumnTooLong {
        /// Location of the row.
        location: RowLocation,
        /// Name of the column.
        column: &'static str,
        /// Number of tokens of the column.
        num_tokens: usize,
        /// Maximum number of tokens of the column.
        max_tokens: usize,
    },
    /// A completion has no tokens.
    #[error("tokenize {location}: the completion in column {column:?} is empty")]
    EmptyCompletion {
        /// Location of the row.
        location: RowLocation,
        /// Name of the column.
        column: &'static str,
    },
    /// The chat template leaves out an answer, or renders the prompt differently before each answer of a row.
    #[error(
        "render {location}: the chat template does not show the answer in message {message_idx}, or writes \
         another prompt before each of the row's answers; use another template"
    )]
    UnstableTemplate {
        /// Location of the row.
        location: RowLocation,
        /// Index of the first message after the prompt.
        message_idx: usize,
    },
    /// The images of a row cannot be used.
    #[error("read the images of {location}")]
    Images {
        /// Location of the row.
        location: RowLocation,
        /// Error of the images.
        #[source]
        source: ImageError,
    },
    /// A supervised example has no token to learn.
    #[error("mask {location}: no token of the assistant's remains to learn from")]
    NothingToLearn {
        /// Location of the row.
        location: RowLocation,
    },
    /// A file to be streamed is one JSON array, which can only be read as a whole.
    #[error(
        "stream {}: expected one JSON object a line, found an array, which is read whole; write lines, or leave \
         out data.streaming", path.display()
    )]
    ArrayInStream {
        /// Path of the file.
        path: PathBuf,
    },
    /// A row fails the check of what uses it, such as the reward functions.
    #[error("check the rows")]
    Check(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The options of a generated task are invalid.
    #[error("generate data")]
    Task(#[from] rlt_core::task::TaskError),
    /// A data set with a weight has no rows, possibly because all were filtered out.
    #[error(
        "read the {split} data: no rows remain of data set {set_idx} (counted from 0), which has a weight"
    )]
    EmptySet {
        /// Split of the data.
        split: Split,
        /// Index of the data set in the split, from 0.
        set_idx: usize,
    },
    /// A split has no rows, possibly because all were filtered out.
    #[error("read the {split} data: no rows remain ({num_filtered} were longer than allowed)")]
    Empty {
        /// Split of the data.
        split: Split,
        /// Number of rows that the length filter has removed.
        num_filtered: u64,
    },
}

/// Formats how many of a row's tokens are image tokens; empty for none.
fn of_images(num_tokens: usize) -> String {
    match num_tokens {
        0 => String::new(),
        _ => format!(", {num_tokens} of them of images"),
    }
}
