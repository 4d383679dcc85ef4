//! Rows of parquet files, by the row interface: no Arrow in between.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::SerializedFileReader;
use serde_json::Value;

use super::rows::{Row, Rows};
use super::{DataError, RowLocation};

/// All rows in file order; nested columns become objects and lists.
pub(super) fn rows(path: Arc<Path>) -> Result<Rows, DataError> {
    let file = File::open(&path).map_err(|source| DataError::Open { path: path.to_path_buf(), source })?;
    let location = move |number| RowLocation { file: Some(path.clone()), number };
    let reader = SerializedFileReader::new(file)
        .map_err(|source| DataError::Parquet { location: location(0), source })?;
    let rows =
        reader.into_iter().zip(1..).map(move |(row, number)| match row.map(|row| row.to_json_value()) {
            Ok(Value::Object(fields)) => Ok(Row { location: location(number), fields }),
            Ok(_) => Ok(Row { location: location(number), fields: serde_json::Map::new() }),
            Err(source) => Err(DataError::Parquet { location: location(number), source }),
        });
    Ok(Box::new(rows))
}
