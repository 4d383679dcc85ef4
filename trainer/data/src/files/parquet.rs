//! Rows of parquet files, read by the row interface, without Arrow.
//!
//! Byte arrays without an annotation are text if they are UTF-8. Otherwise they become an object with `bytes`
//! in base64, the form of an image, which no text column accepts.

mod codecs;
mod lists;
mod pages;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::record::{Field, Row as ParquetRow};
use rlt_terminal::panics;
use serde_json::{Map, Value, json};

use self::pages::RowGroup;
use super::super::rows::{Place, Row, Rows};
use super::super::{DataError, RowLocation};

/// Reads all rows in file order; nested columns become objects and lists.
pub(crate) fn rows(path: Arc<Path>) -> Result<Rows, DataError> {
    Ok(Box::new(RowsFrom::open(&path, Place::default())?))
}

/// Reader of the rows of a file, starting at a place. Row groups before that place are not read.
pub(crate) struct RowsFrom {
    path: Arc<Path>,
    file: Arc<File>,
    metadata: ParquetMetaData,
    /// Index of the row group that is read next.
    next_group: usize,
    group: Option<ReaderIter>,
    /// Number of rows before the next one in the file.
    number: u64,
}

impl RowsFrom {
    pub(crate) fn open(path: &Arc<Path>, place: Place) -> Result<Self, DataError> {
        let file =
            rlt_files::open(path).map_err(|source| DataError::Open { path: path.to_path_buf(), source })?;
        let metadata = decoded(|| ParquetMetaDataReader::new().parse_and_finish(&file))
            .map_err(|source| broken(path, 0, source))?;
        let (path, file) = (Arc::clone(path), Arc::new(file));
        let mut rows = Self { path, file, metadata, next_group: 0, group: None, number: 0 };
        while let Some(group) = rows.metadata.row_groups().get(rows.next_group) {
            let behind = rows.number + group.num_rows().unsigned_abs();
            if behind > place.number {
                break;
            }
            (rows.next_group, rows.number) = (rows.next_group + 1, behind);
        }
        while rows.number < place.number {
            match rows.next() {
                Some(row) => row.map(drop)?,
                None => break,
            }
        }
        Ok(rows)
    }

    pub(crate) fn place(&self) -> Place {
        Place { offset: 0, number: self.number }
    }

    fn next_group(&mut self) -> Result<ReaderIter, ParquetError> {
        let schema = self.metadata.file_metadata().schema_descr_ptr();
        let group = RowGroup { file: &self.file, metadata: self.metadata.row_group(self.next_group) };
        // All values of a batch are decoded at once, and a list may have any number of them, so a batch is
        // one row.
        let group = decoded(|| TreeBuilder::new().with_batch_size(1).as_iter(schema, &group))?;
        self.next_group += 1;
        Ok(group)
    }

    /// Returns the next row of the current row group. Dates outside the calendar panic in the conversion to
    /// JSON.
    fn next_of_group(&mut self) -> Option<Result<Value, ParquetError>> {
        let group = self.group.as_mut()?;
        let row = || Ok(group.next().transpose()?.map(|row| object(&row)));
        decoded(row).transpose()
    }

    /// Ends the file: after an error none of its content can be trusted.
    fn end(&mut self) {
        self.next_group = self.metadata.num_row_groups();
        self.group = None;
    }
}

impl Iterator for RowsFrom {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.next_of_group() {
                self.number += 1;
                let location = RowLocation { file: Some(Arc::clone(&self.path)), number: self.number };
                return Some(match row {
                    Ok(Value::Object(fields)) => Ok(Row { location, fields }),
                    Ok(_) => Ok(Row { location, fields: Map::new() }),
                    Err(source) => {
                        self.end();
                        Err(DataError::Parquet { location, source })
                    }
                });
            }
            if self.next_group >= self.metadata.num_row_groups() {
                return None;
            }
            match self.next_group() {
                Ok(group) => self.group = Some(group),
                Err(source) => {
                    self.end();
                    return Some(Err(broken(&self.path, self.number + 1, source)));
                }
            }
        }
    }
}

/// Converts a row, or a struct within one. Its field `bytes` holds an image or a sound and is always base64.
fn object(row: &ParquetRow) -> Value {
    let fields = row.get_column_iter().map(|(name, field)| match field {
        Field::Bytes(bytes) if name == "bytes" => (name.clone(), base64_of(bytes)),
        field => (name.clone(), json_of(field)),
    });
    Value::Object(fields.collect())
}

fn json_of(field: &Field) -> Value {
    match field {
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.into(),
            Err(_) => json!({ "bytes": base64_of(bytes) }),
        },
        Field::Group(row) => object(row),
        Field::ListInternal(list) => list.elements().iter().map(json_of).collect(),
        Field::MapInternal(map) => {
            let key = |key: &Field| match json_of(key) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            map.entries().iter().map(|(name, value)| (key(name), json_of(value))).collect()
        }
        other => other.to_json_value(),
    }
}

fn base64_of(bytes: &ByteArray) -> Value {
    BASE64_STANDARD.encode(bytes.data()).into()
}

/// Runs `work` of the decoder and turns a panic into an error. The decoder asserts some properties of the
/// file, so a damaged file may make it panic. The caller must not use a reader again after a panic.
fn decoded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(ParquetError::General(format!("the decoder panicked: {}", panics::message(&*panic))))
    })
}

fn broken(path: &Arc<Path>, number: u64, source: ParquetError) -> DataError {
    DataError::Parquet { location: RowLocation { file: Some(Arc::clone(path)), number }, source }
}
