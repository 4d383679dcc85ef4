//! Files with one JSON object per line: errors name the line, and writes are all or nothing.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rlt_api::ExitCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run_folder::new_in;

/// A file of JSON lines could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JsonlError {
    /// The file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A line is invalid.
    #[error("{}, line {line}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Error of the line.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file has no lines.
    #[error("read {}: expected at least one line, the file is empty", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl JsonlError {
    /// Creates the error of a line that parses, but that the caller rejects.
    pub fn at_line(
        path: &Path,
        line: usize,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Line { path: path.to_owned(), line, source: source.into() }
    }

    /// Exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Read { .. } | Self::Line { .. } | Self::Empty { .. } => ExitCode::BadConfig,
            Self::Write { .. } => ExitCode::RetryableIo,
        }
    }
}

/// Reads all lines of `path` with their numbers from 1; blank lines are skipped.
///
/// # Errors
/// [`JsonlError`] with the path and, if a line is invalid, its number.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<(usize, T)>, JsonlError> {
    let text = rlt_files::read_argument(path, rlt_files::MAX_LOG_BYTES)
        .map_err(|source| JsonlError::Read { path: path.to_owned(), source })?;
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(idx, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(row) => Ok((idx + 1, row)),
        Err(source) => Err(JsonlError::at_line(path, idx + 1, source)),
    };
    let rows: Vec<(usize, T)> = numbered.map(parse).collect::<Result<_, _>>()?;
    if rows.is_empty() { Err(JsonlError::Empty { path: path.to_owned() }) } else { Ok(rows) }
}

/// Writes one line per row into a temporary file in the folder of `path` and renames it: a reader sees all
/// lines or none.
///
/// # Errors
/// [`JsonlError::Write`]; `path` is unchanged then.
pub fn write<T: Serialize>(path: &Path, rows: impl IntoIterator<Item = T>) -> Result<(), JsonlError> {
    write_rows(path, rows).map_err(|source| JsonlError::Write { path: path.to_owned(), source })
}

fn write_rows<T: Serialize>(path: &Path, rows: impl IntoIterator<Item = T>) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = new_in(dir, ".jsonl-")?;
    let mut writer = BufWriter::new(file);
    for row in rows {
        serde_json::to_writer(&mut writer, &row)?;
        writer.write_all(b"\n")?;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    rlt_files::sync_folder(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn written_lines_are_read_with_line_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        write(&path, [1, 2]).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), [(1, 1), (2, 2)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_malformed_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        fs::write(&path, "1\n\n{\n").unwrap();
        let error = read::<u32>(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("{}, line 3", path.display()));
        fs::write(&path, "\n").unwrap();
        assert!(matches!(read::<u32>(&path), Err(JsonlError::Empty { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        write(&path, [1]).unwrap();
        struct Unwritable;
        impl Serialize for Unwritable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("no"))
            }
        }
        assert!(write(&path, [Unwritable]).is_err());
        assert_eq!(read::<u32>(&path).unwrap(), [(1, 1)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
