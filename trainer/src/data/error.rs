//! What can be wrong with data, always with the place.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Split;
use super::images::ImageError;
use crate::data::tokenizer::TokenizerError;

/// A row of a file, or a problem of a generated task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// The file; `None` for a generated task.
    pub file: Option<Arc<Path>>,
    /// Line (JSONL) or row (parquet, JSON array, task), from 1.
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
    /// Whether a file could not be read, which may pass.
    pub fn is_io(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Read { .. })
    }

    /// The row that is wrong, where it is one.
    pub fn location(&self) -> Option<&RowLocation> {
        match self {
            Self::Read { location, .. }
            | Self::Json { location, .. }
            | Self::Parquet { location, .. }
            | Self::MissingColumn { location, .. }
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

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is missing or unreadable.
    #[error("open data file {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The name says no known format.
    #[error("read {}: expected a name that ends in .jsonl, .json or .parquet", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file ended or broke while it was read.
    #[error("read {location}")]
    Read {
        /// Where.
        location: RowLocation,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line is not a JSON object.
    #[error("parse {location}: expected one JSON object")]
    Json {
        /// Where.
        location: RowLocation,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The parquet file or one of its rows cannot be decoded.
    #[error("decode {location}")]
    Parquet {
        /// Where.
        location: RowLocation,
        /// Why.
        #[source]
        source: ::parquet::errors::ParquetError,
    },
    /// A column is not there.
    #[error("read {location}: expected a column {column:?}, found {found:?}")]
    MissingColumn {
        /// Where.
        location: RowLocation,
        /// The column, a dotted path for a nested field.
        column: String,
        /// The columns that are there.
        found: Vec<String>,
    },
    /// A column has another type than it must have.
    #[error("read {location}: column {column:?} is {got}, expected {expected}")]
    WrongType {
        /// Where.
        location: RowLocation,
        /// The column.
        column: String,
        /// The value, shortened.
        got: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A row could not be rendered or tokenized.
    #[error("tokenize {location}")]
    Tokenize {
        /// Where.
        location: RowLocation,
        /// Why.
        #[source]
        source: TokenizerError,
    },
    /// The prompt has no tokens.
    #[error("tokenize {location}: the prompt is empty")]
    EmptyPrompt {
        /// Where.
        location: RowLocation,
    },
    /// A prompt is too long and `overlongPrompts` is `Error`.
    #[error(
        "tokenize {location}: {num_tokens} tokens{}, expected at most {max_tokens}", of_images(*num_image_tokens)
    )]
    TooLong {
        /// Where.
        location: RowLocation,
        /// Tokens it has.
        num_tokens: usize,
        /// Those of images among them.
        num_image_tokens: usize,
        /// Tokens it may have.
        max_tokens: usize,
    },
    /// A part of a row is too long and `overlongPrompts` is `Error`.
    #[error("tokenize {location}: column {column:?} has {num_tokens} tokens, expected at most {max_tokens}")]
    ColumnTooLong {
        /// Where.
        location: RowLocation,
        /// The column.
        column: &'static str,
        /// Tokens it has.
        num_tokens: usize,
        /// Tokens it may have.
        max_tokens: usize,
    },
    /// A completion has no tokens.
    #[error("tokenize {location}: the completion in column {column:?} is empty")]
    EmptyCompletion {
        /// Where.
        location: RowLocation,
        /// The column.
        column: &'static str,
    },
    /// The chat template writes earlier turns differently once later ones follow.
    #[error(
        "mask {location}: the chat template does not extend its own text at message {message_idx}, so the \
         assistant's part cannot be told apart; use one row per answer or another template"
    )]
    UnstableTemplate {
        /// Where.
        location: RowLocation,
        /// Position of the assistant's message.
        message_idx: usize,
    },
    /// The images of a row cannot be used.
    #[error("read the images of {location}")]
    Images {
        /// Where.
        location: RowLocation,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// A supervised example teaches nothing.
    #[error("mask {location}: no token of the assistant's remains to learn from")]
    NothingToLearn {
        /// Where.
        location: RowLocation,
    },
    /// A file that is to be read row by row is one array.
    #[error(
        "stream {}: expected one JSON object a line, found an array, which is read whole; write lines, or leave \
         out data.streaming", path.display()
    )]
    ArrayInStream {
        /// The file.
        path: PathBuf,
    },
    /// A row cannot be used for what it is read for.
    #[error("check the rows")]
    Check(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A generated task's options are impossible.
    #[error("generate data")]
    Task(#[from] rlt_core::task::TaskError),
    /// Nothing is left of a data set with a weight.
    #[error(
        "read the {split} data: no rows remain of data set {set_idx} (counted from 0), which has a weight"
    )]
    EmptySet {
        /// Which data.
        split: Split,
        /// Which of its data sets.
        set_idx: usize,
    },
    /// Nothing is left to train on.
    #[error("read the {split} data: no rows remain ({num_filtered} were longer than allowed)")]
    Empty {
        /// Which data.
        split: Split,
        /// Rows that the length filter took.
        num_filtered: u64,
    },
}

/// Says how many of a row's tokens are those of images.
fn of_images(num_tokens: usize) -> String {
    match num_tokens {
        0 => String::new(),
        _ => format!(", {num_tokens} of them of images"),
    }
}
