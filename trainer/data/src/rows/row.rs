//! A row with its location.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{DataError, RowLocation};

/// Split of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Rows to train on.
    Train,
    /// Rows for evaluation.
    HeldOut,
}

impl fmt::Display for Split {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Train => "training",
            Self::HeldOut => "held-out",
        })
    }
}

/// A row with its location.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) location: RowLocation,
    pub(crate) fields: Map<String, Value>,
}

pub(crate) type Rows = Box<dyn Iterator<Item = Result<Row, DataError>>>;

/// Position in a file at which a row begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of bytes before the row; 0 in a parquet file.
    pub offset: u64,
    /// Number of lines or rows before the row.
    pub number: u64,
}

impl Row {
    /// Value of a required column; null counts as absent.
    pub(crate) fn column(&self, name: &str) -> Result<&Value, DataError> {
        self.optional(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn missing(&self, name: &str) -> DataError {
        if self.fields.get(name).is_some_and(Value::is_null) {
            return DataError::NullColumn { location: self.location.clone(), column: name.to_owned() };
        }
        DataError::MissingColumn {
            location: self.location.clone(),
            column: name.to_owned(),
            found: self.fields.keys().cloned().collect(),
        }
    }

    pub(crate) fn optional(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Value of a column or, where `path` has dots, of a nested field; null counts as absent.
    pub(crate) fn at(&self, path: &str) -> Option<&Value> {
        self.optional(path).or_else(|| {
            let mut parts = path.split('.');
            let first = self.optional(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part)).filter(|value| !value.is_null())
        })
    }

    pub(crate) fn wrong_type(&self, column: &str, got: &Value, expected: &'static str) -> DataError {
        let got = got.to_string().chars().take(80).collect();
        DataError::WrongType { location: self.location.clone(), column: column.to_owned(), got, expected }
    }
}
