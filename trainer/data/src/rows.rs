//! Rows as JSON objects, whatever their source.

mod fitted;
mod row;

use std::path::Path;
use std::sync::Arc;

use rlt_api::spec::{DataSource, DataSpec};
use sha2::{Digest, Sha256};

use super::{DataError, jsonl, parquet, sets, task};
pub(super) use fitted::Fitted;
pub use row::{Place, Split};
pub(super) use row::{Row, Rows};

/// Reader of the rows of a file, starting at a [`Place`].
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
    /// Returns the place of the next row.
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

/// Opens a file to read its rows one at a time, starting at `place`.
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
