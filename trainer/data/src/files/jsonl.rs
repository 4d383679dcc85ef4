//! Rows of JSON files: one object per line, or one array of objects.
//!
//! A byte order mark at the start of a file is skipped. `NaN` and `Infinity`, which Python writes although
//! JSON lacks them, are read as null. Integers beyond 64 bits, which would lose digits, are refused.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::rows::{Place, Row, Rows};
use super::super::{DataError, RowLocation};
use super::integers::{LargeIntegers, may_be_rounded};

/// Maximum length of a line in bytes; one image of the largest size takes 86 MiB.
const MAX_ROW_BYTES: u64 = 512 << 20;
/// Maximum length of an array in bytes, which is held in memory as a whole.
const MAX_ARRAY_BYTES: u64 = 4 << 30;

fn open(path: &Path) -> Result<BufReader<File>, DataError> {
    let opened = rlt_files::open(path);
    opened.map(BufReader::new).map_err(|source| DataError::Open { path: path.to_owned(), source })
}

/// Reads one object per line; empty lines are skipped but counted in line numbers.
pub(crate) fn lines(path: Arc<Path>) -> Result<Rows, DataError> {
    let reader = open(&path)?;
    Ok(Box::new(LinesFrom { reader, path, place: Place::default() }))
}

/// Reader of the lines of a file, starting at a place.
pub(crate) struct LinesFrom {
    reader: BufReader<File>,
    path: Arc<Path>,
    place: Place,
}

impl LinesFrom {
    pub(crate) fn open(path: &Arc<Path>, place: Place) -> Result<Self, DataError> {
        let mut reader = open(path)?;
        let failed = |source| DataError::Open { path: path.to_path_buf(), source };
        if begins_with_bracket(&mut reader).map_err(failed)? {
            return Err(DataError::ArrayInStream { path: path.to_path_buf() });
        }
        reader.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
        Ok(Self { reader, path: Arc::clone(path), place })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

impl Iterator for LinesFrom {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let location = RowLocation { file: Some(Arc::clone(&self.path)), number: self.place.number + 1 };
            match rlt_files::read_line(&mut self.reader, MAX_ROW_BYTES) {
                Ok(line) if line.is_empty() => return None,
                Ok(line) => {
                    self.place =
                        Place { offset: self.place.offset + line.len() as u64, number: location.number };
                    if !line.trim_start_matches(MARK).trim().is_empty() {
                        return Some(parse_line(&line, location));
                    }
                }
                Err(source) => return Some(Err(DataError::Read { location, source })),
            }
        }
    }
}

/// The byte order mark that editors on Windows put in front of a file.
const MARK: char = '\u{feff}';

fn begins_with_bracket(reader: &mut BufReader<File>) -> std::io::Result<bool> {
    let start = reader.fill_buf()?;
    let start = start.strip_prefix(MARK.to_string().as_bytes()).unwrap_or(start);
    Ok(start.trim_ascii_start().starts_with(b"["))
}

/// Parses JSON as Python's `json` reads it, except that numbers which JSON does not have are null.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_str(text) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error,
    };
    match without_odd_numbers(text) {
        Some(text) => serde_json::from_str(&text).map_err(|_| error),
        None => Err(error),
    }
}

/// Returns the text with null in place of `NaN`, `Infinity` and `-Infinity` outside of strings; `None` if it
/// has none of them.
fn without_odd_numbers(text: &str) -> Option<String> {
    const ODD: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut found) = (text, false);
    while let Some(next) = rest.chars().next() {
        if let Some(odd) = ODD.into_iter().find(|odd| rest.starts_with(odd)) {
            out.push_str("null");
            (rest, found) = (&rest[odd.len()..], true);
            continue;
        }
        let length = if next == '"' { string_length(rest) } else { next.len_utf8() };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    found.then_some(out)
}

/// Returns the length in bytes of the JSON string at the start of a text, quotes included.
pub(super) fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn parse_line(line: &str, location: RowLocation) -> Result<Row, DataError> {
    let line = if location.number == 1 { line.trim_start_matches(MARK) } else { line };
    match parse::<Map<String, Value>>(line) {
        Ok(fields) => {
            if fields.values().any(may_be_rounded) {
                LargeIntegers::of(line).check_row(&location, &fields)?;
            }
            Ok(Row { location, fields })
        }
        Err(source) => Err(DataError::Json { location, source }),
    }
}

/// Reads a `.json` file: an array if it begins with a bracket, else one object per line.
pub(crate) fn lines_or_array(path: Arc<Path>) -> Result<Rows, DataError> {
    let mut reader = open(&path)?;
    let failed = |source| DataError::Open { path: path.to_path_buf(), source };
    if !begins_with_bracket(&mut reader).map_err(failed)? {
        return lines(path);
    }
    let text = rlt_files::read_rest(reader, MAX_ARRAY_BYTES).map_err(failed)?;
    let location = |number| RowLocation { file: Some(path.clone()), number };
    let text = text.trim_start_matches(MARK);
    let values: Vec<Value> =
        parse(text).map_err(|source| DataError::Json { location: location(0), source })?;
    let large = LargeIntegers::of(if values.iter().any(may_be_rounded) { text } else { "" });
    let rows: Vec<_> = values
        .into_iter()
        .zip(1..)
        .map(|(value, number)| match serde_json::from_value(value) {
            Ok(fields) => {
                let location = location(number);
                large.check_row(&location, &fields).map(|()| Row { location, fields })
            }
            Err(source) => Err(DataError::Json { location: location(number), source }),
        })
        .collect();
    Ok(Box::new(rows.into_iter()))
}
