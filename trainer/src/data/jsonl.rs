//! Rows of JSON files: one object a line, or one array of objects.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::rows::{Row, Rows};
use super::{DataError, RowLocation};

fn open(path: &Path) -> Result<BufReader<File>, DataError> {
    let opened = File::open(path);
    opened.map(BufReader::new).map_err(|source| DataError::Open { path: path.to_owned(), source })
}

/// One object a line; empty lines are skipped and counted in line numbers.
pub(super) fn lines(path: Arc<Path>) -> Result<Rows, DataError> {
    let reader = open(&path)?;
    let rows = reader.lines().zip(1..).filter_map(move |(line, number)| {
        let location = RowLocation { file: Some(path.clone()), number };
        match line {
            Ok(line) if line.trim().is_empty() => None,
            Ok(line) => Some(parse_line(&line, location)),
            Err(source) => Some(Err(DataError::Read { location, source })),
        }
    });
    Ok(Box::new(rows))
}

fn parse_line(line: &str, location: RowLocation) -> Result<Row, DataError> {
    match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(fields) => Ok(Row { location, fields }),
        Err(source) => Err(DataError::Json { location, source }),
    }
}

/// A `.json` file is an array when it begins with a bracket, else lines.
pub(super) fn lines_or_array(path: Arc<Path>) -> Result<Rows, DataError> {
    let mut reader = open(&path)?;
    let failed = |source| DataError::Open { path: path.to_path_buf(), source };
    let begins_with_bracket = reader.fill_buf().map_err(failed)?.trim_ascii_start().starts_with(b"[");
    if !begins_with_bracket {
        return lines(path);
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(failed)?;
    let location = |number| RowLocation { file: Some(path.clone()), number };
    let values: Vec<Value> =
        serde_json::from_str(&text).map_err(|source| DataError::Json { location: location(0), source })?;
    let rows: Vec<_> = values
        .into_iter()
        .zip(1..)
        .map(|(value, number)| match serde_json::from_value(value) {
            Ok(fields) => Ok(Row { location: location(number), fields }),
            Err(source) => Err(DataError::Json { location: location(number), source }),
        })
        .collect();
    Ok(Box::new(rows.into_iter()))
}
