//! Rows of JSON files: one object per line, or one array of objects.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::rows::{Place, Row, Rows};
use super::{DataError, RowLocation};

fn open(path: &Path) -> Result<BufReader<File>, DataError> {
    let opened = File::open(path);
    opened.map(BufReader::new).map_err(|source| DataError::Open { path: path.to_owned(), source })
}

/// Reads one object per line; empty lines are skipped but counted in line numbers.
pub(super) fn lines(path: Arc<Path>) -> Result<Rows, DataError> {
    let reader = open(&path)?;
    Ok(Box::new(LinesFrom { reader, path, place: Place::default() }))
}

/// Lines of a file, from a place on.
pub(super) struct LinesFrom {
    reader: BufReader<File>,
    path: Arc<Path>,
    place: Place,
}

impl LinesFrom {
    pub(super) fn open(path: &Arc<Path>, place: Place) -> Result<Self, DataError> {
        let mut reader = open(path)?;
        let failed = |source| DataError::Open { path: path.to_path_buf(), source };
        if begins_with_bracket(&mut reader).map_err(failed)? {
            return Err(DataError::ArrayInStream { path: path.to_path_buf() });
        }
        reader.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
        Ok(Self { reader, path: Arc::clone(path), place })
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }
}

impl Iterator for LinesFrom {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = String::new();
            let location = RowLocation { file: Some(Arc::clone(&self.path)), number: self.place.number + 1 };
            match self.reader.read_line(&mut line) {
                Ok(0) => return None,
                Ok(num_bytes) => {
                    self.place =
                        Place { offset: self.place.offset + num_bytes as u64, number: location.number };
                    if !line.trim().is_empty() {
                        return Some(parse_line(&line, location));
                    }
                }
                Err(source) => return Some(Err(DataError::Read { location, source })),
            }
        }
    }
}

fn begins_with_bracket(reader: &mut BufReader<File>) -> std::io::Result<bool> {
    Ok(reader.fill_buf()?.trim_ascii_start().starts_with(b"["))
}

fn parse_line(line: &str, location: RowLocation) -> Result<Row, DataError> {
    match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(fields) => Ok(Row { location, fields }),
        Err(source) => Err(DataError::Json { location, source }),
    }
}

/// Reads a `.json` file: an array if it begins with a bracket, else one object per line.
pub(super) fn lines_or_array(path: Arc<Path>) -> Result<Rows, DataError> {
    let mut reader = open(&path)?;
    let failed = |source| DataError::Open { path: path.to_path_buf(), source };
    if !begins_with_bracket(&mut reader).map_err(failed)? {
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
