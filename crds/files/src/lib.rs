//! Files that manifests, models and data sets name: regular files, opened and read within bounds.
//!
//! A path may lead anywhere: a device has no end, a pipe may never have a writer, and a link may leave the
//! folder of a data set. So the command lines read each file that a user, a model or a data set names through
//! the functions of this package.

mod refusal;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub use refusal::{Refusal, is_refusal, refusal_in};

/// Maximum size of a JSON file of a model, such as `config.json` or the index of its weights, in bytes.
pub const MAX_MODEL_JSON_BYTES: u64 = 64 << 20;
/// Maximum size of a manifest in bytes. The API server accepts about 1.5 MiB.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of a run's log, or of a file of prompts, which is read into memory.
pub const MAX_LOG_BYTES: u64 = 4 << 30;
/// Mark that editors on Windows put in front of a text.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Name by which a command line means standard input.
const STANDARD_INPUT: &str = "-";

/// Opens a regular file for reading. Refuses every other kind of file, and never waits for the writer of a
/// pipe.
///
/// # Errors
/// [`Refusal::NotRegular`] within the error, for a device, pipe, socket or folder; else the error of the
/// operating system.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device may have effects of its own, so the path is checked first.
    refusal::check_is_regular(&fs::metadata(path)?)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    // The path may have been replaced since the check.
    refusal::check_is_regular(&file.metadata()?)?;
    Ok(file)
}

/// Number of free bytes on the disk of `path`; `None` if the file system does not report it.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok().filter(|disk| disk.f_blocks > 0)?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Syncs a folder, so that the names of its files survive a power loss. Syncing a file only makes its content
/// durable.
///
/// # Errors
/// The error of the operating system. That a file system cannot sync folders is no error.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path)?.sync_all() {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// A [`Refusal`] within the error, or the error of the operating system.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if file.metadata()?.len() > max_bytes {
        return Err(Refusal::TooLong { max_bytes }.into());
    }
    read_to_end(file, max_bytes)
}

/// Reads a regular file of at most `max_bytes` of UTF-8.
///
/// # Errors
/// As [`read`], and [`io::ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_to_string(path: &Path, max_bytes: u64) -> io::Result<String> {
    text_of(read(path, max_bytes)?)
}

/// Reads the text that an argument of a command names: a file, also a pipe such as `<(kustomize build)`, or
/// standard input (`-`). A byte order mark, which editors on Windows put in front, is left out.
///
/// # Errors
/// [`Refusal::TooLong`] within the error, or the error of the operating system.
pub fn read_argument(path: &Path, max_bytes: u64) -> io::Result<String> {
    let bytes = match path == Path::new(STANDARD_INPUT) {
        true => read_to_end(io::stdin(), max_bytes)?,
        false => read_to_end(File::open(path)?, max_bytes)?,
    };
    let mut text = text_of(bytes)?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

/// Reads the rest of a stream, which may have at most `max_bytes` of UTF-8.
///
/// # Errors
/// As [`read_argument`].
pub fn read_rest(stream: impl Read, max_bytes: u64) -> io::Result<String> {
    text_of(read_to_end(stream, max_bytes)?)
}

/// Reads one line of at most `max_bytes`, its line break included. Returns an empty line at the end of the
/// stream.
///
/// # Errors
/// As [`read_argument`].
pub fn read_line(stream: &mut impl BufRead, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    stream.take(max_bytes.saturating_add(1)).read_until(b'\n', &mut bytes)?;
    check_length(&bytes, max_bytes)?;
    text_of(bytes)
}

/// Resolves `..` and symbolic links in `path`, and checks that the result is below one of `folders`, which
/// are resolved too.
///
/// # Errors
/// [`Refusal::Outside`] within the error, or the error of the operating system.
pub fn resolve_below<'a>(path: &Path, folders: impl IntoIterator<Item = &'a Path>) -> io::Result<PathBuf> {
    let target = fs::canonicalize(path)?;
    let holds = |folder: &Path| fs::canonicalize(folder).is_ok_and(|folder| target.starts_with(folder));
    match folders.into_iter().any(holds) {
        true => Ok(target),
        false => Err(Refusal::Outside { target }.into()),
    }
}

/// Reads to the end of the stream. The length that the file system reports is ignored, because a file may
/// grow.
fn read_to_end(stream: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    check_length(&bytes, max_bytes)?;
    Ok(bytes)
}

fn check_length(bytes: &[u8], max_bytes: u64) -> Result<(), Refusal> {
    if bytes.len() as u64 > max_bytes { Err(Refusal::TooLong { max_bytes }) } else { Ok(()) }
}

fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}
