//! Rows as JSON objects, whatever their source.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rlt_api::spec::{DataSource, DataSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{DataError, RowLocation, jsonl, parquet, sets, task};

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
pub(super) struct Row {
    pub(super) location: RowLocation,
    pub(super) fields: Map<String, Value>,
}

pub(super) type Rows = Box<dyn Iterator<Item = Result<Row, DataError>>>;

/// Place in a file at which a row begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of bytes before the row; 0 in a parquet file.
    pub offset: u64,
    /// Number of lines or rows before the row.
    pub number: u64,
}

/// Rows of a file, from a place on.
pub(super) enum RowsFrom {
    Lines(jsonl::LinesFrom),
    Parquet(parquet::RowsFrom),
}

impl Iterator for RowsFrom {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Parquet(rows) => rows.next(),
        }
    }
}

impl RowsFrom {
    /// Place of the next row.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Lines(lines) => lines.place(),
            Self::Parquet(rows) => rows.place(),
        }
    }
}

/// Opens the rows of one data set of a split, in order and limited to the number that the manifest allows.
/// `spec` is one of [`sets::specs`].
pub(super) fn open(spec: &DataSpec, split: Split) -> Result<Rows, DataError> {
    let rows: Rows = match spec.source() {
        DataSource::Task(task) => task::rows(task, split)?,
        DataSource::Datasets => {
            Box::new(sets::files(spec).to_vec().into_iter().flat_map(|file| open_file(&file)))
        }
    };
    let limit = match split {
        Split::Train => spec.max_train_prompts,
        Split::HeldOut => spec.max_held_out_prompts,
    };
    Ok(match limit.and_then(|limit| usize::try_from(limit).ok()) {
        Some(limit) => Box::new(rows.take(limit)),
        None => rows,
    })
}

fn open_file(file: &str) -> Rows {
    let path: Arc<Path> = Arc::from(Path::new(file));
    let opened = match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl" | "ndjson") => jsonl::lines(path),
        Some("json") => jsonl::lines_or_array(path),
        Some("parquet") => parquet::rows(path),
        _ => Err(DataError::UnknownFormat { path: path.to_path_buf() }),
    };
    opened.unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
}

/// Opens the rows of a file from a place on, read one at a time.
///
/// # Errors
/// [`DataError`]; a `.json` file has to hold one object per line, because an array can only be read as a
/// whole.
pub(super) fn open_at(path: &Arc<Path>, place: Place) -> Result<RowsFrom, DataError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl" | "ndjson" | "json") => jsonl::LinesFrom::open(path, place).map(RowsFrom::Lines),
        Some("parquet") => parquet::RowsFrom::open(path, place).map(RowsFrom::Parquet),
        _ => Err(DataError::UnknownFormat { path: path.to_path_buf() }),
    }
}

impl Row {
    /// Value of a required column; null counts as absent.
    pub(super) fn column(&self, name: &str) -> Result<&Value, DataError> {
        self.optional(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn missing(&self, name: &str) -> DataError {
        if self.fields.get(name).is_some_and(Value::is_null) {
            return DataError::NullColumn { location: self.location.clone(), column: name.to_owned() };
        }
        DataError::MissingColumn {
            location: self.location.clone(),
            column: name.to_owned(),
            found: self.fields.keys().cloned().collect(),
        }
    }

    pub(super) fn optional(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Value of a column or, where `path` has dots, of a nested field; null counts as absent.
    pub(super) fn at(&self, path: &str) -> Option<&Value> {
        self.optional(path).or_else(|| {
            let mut parts = path.split('.');
            let first = self.optional(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part)).filter(|value| !value.is_null())
        })
    }

    pub(super) fn wrong_type(&self, column: &str, got: &Value, expected: &'static str) -> DataError {
        let got = got.to_string().chars().take(80).collect();
        DataError::WrongType { location: self.location.clone(), column: column.to_owned(), got, expected }
    }
}

/// SHA-256 digest of rows as lines of compact JSON.
#[derive(Default)]
pub(super) struct RowDigest(Sha256);

impl RowDigest {
    pub(super) fn update(&mut self, row: &Row) {
        // A map of JSON values can always be serialized.
        let line = serde_json::to_vec(&row.fields).unwrap_or_default();
        self.0.update(&line);
        self.0.update(b"\n");
    }

    pub(super) fn update_weight(&mut self, weight: f64) {
        self.0.update(weight.to_le_bytes());
    }

    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
