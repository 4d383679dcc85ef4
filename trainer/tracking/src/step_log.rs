//! `metrics.jsonl` and `completions.jsonl`: one JSON object a line, every step exactly once.

mod history;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::append_file::{AppendFile, RecordSink as _, end_of_lines};
use super::{CompletionRecord, Stage, StepMetrics, Tracker, TrackingError};
pub use history::History;
pub(super) use history::HistoryPosition;

/// Name of the log of steps.
const METRICS: &str = "metrics.jsonl";

/// `metrics.jsonl`.
pub(super) struct StepLog(AppendFile);

/// `completions.jsonl`.
pub(super) struct CompletionLog(AppendFile);

impl StepLog {
    /// Opens the log in `folder`, truncated after the last step up to `resumed_after`, or empty.
    pub(super) fn open(folder: &Path, resumed_after: Option<(Stage, u64)>) -> Result<Self, TrackingError> {
        Ok(Self(open_cut(&folder.join(METRICS), resumed_after, |line| is_until(line, resumed_after))?))
    }
}

/// Whether a line belongs to a step up to `last`.
fn is_until(line: &[u8], last: Option<(Stage, u64)>) -> bool {
    let metrics = serde_json::from_slice::<StepMetrics>(line);
    metrics.is_ok_and(|metrics| last.is_some_and(|last| metrics.position() <= last))
}

impl Tracker for StepLog {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        self.0.append(&line(metrics))
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.0.sync()
    }
}

impl CompletionLog {
    /// Opens the log in `folder`, truncated after the last completion up to `resumed_after`, or empty.
    pub(super) fn open(folder: &Path, resumed_after: Option<(Stage, u64)>) -> Result<Self, TrackingError> {
        #[derive(Deserialize)]
        struct Position {
            step: u64,
        }
        let stays = |line: &[u8]| {
            let step = serde_json::from_slice(line).map(|Position { step }| step);
            step.is_ok_and(|step| resumed_after.is_some_and(|last| (Stage::Training, step) <= last))
        };
        Ok(Self(open_cut(&folder.join("completions.jsonl"), resumed_after, stays)?))
    }
}

impl Tracker for CompletionLog {
    fn log_step(&mut self, _metrics: &StepMetrics) -> Result<(), TrackingError> {
        Ok(())
    }

    fn takes_completions(&self) -> bool {
        true
    }

    fn log_completions(&mut self, completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        self.0.append(&completions.iter().flat_map(line).collect::<Vec<u8>>())
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.0.sync()
    }
}

/// Opens a log, truncated after the last line that `stays`. The log of a run that starts from scratch is
/// emptied.
fn open_cut(
    path: &Path,
    resumed_after: Option<(Stage, u64)>,
    stays: impl Fn(&[u8]) -> bool,
) -> Result<AppendFile, TrackingError> {
    let end = if resumed_after.is_some() { end_of_lines(path, stays) } else { Ok(0) };
    AppendFile::open_cut(path, end.map_err(TrackingError::file("read", path))?)
}

/// Returns the steps of `metrics.jsonl` in `folder` up to `resumed_after`, in order; none for a run that
/// starts from scratch.
///
/// # Errors
/// When the file exists and cannot be read.
pub(super) fn history(folder: &Path, resumed_after: Option<(Stage, u64)>) -> Result<History, TrackingError> {
    if resumed_after.is_none() {
        return Ok(History::default());
    }
    let path = folder.join(METRICS);
    let end = end_of_lines(&path, |line| is_until(line, resumed_after));
    let end = end.map_err(TrackingError::file("read", &path))?;
    Ok(History::of_log(path, end, resumed_after))
}

/// Calls `take` with each step of a `metrics.jsonl`, in the order of the run. Of steps that were logged
/// twice, the first counts. A missing file has no steps, and incomplete lines of a killed process are
/// skipped.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn for_each_step(path: &Path, mut take: impl FnMut(&StepMetrics)) -> Result<(), TrackingError> {
    let history = History::of_log(path.to_path_buf(), u64::MAX, None);
    history.for_each(|metrics| {
        take(metrics);
        Ok(())
    })
}

/// Calls `take` with each completion of a `completions.jsonl` in order, without the values of its tokens, one
/// at a time, because the file of a long run does not fit into memory. A missing file has no completions, and
/// incomplete lines of a killed process are skipped.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn for_each_completion(path: &Path, mut take: impl FnMut(CompletionRecord)) -> Result<(), TrackingError> {
    for_each_completion_of(path, 0..u64::MAX, &mut take)
}

/// Calls `take` as [`for_each_completion`] does. Of a file of more than `max_bytes` only the completions at
/// both ends are read, because it may take minutes to read the others.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn for_each_completion_at_ends(
    path: &Path,
    max_bytes: u64,
    mut take: impl FnMut(CompletionRecord),
) -> Result<(), TrackingError> {
    // A missing file counts as empty.
    let len = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let half = max_bytes / 2;
    let last = if len > max_bytes { len - half } else { half };
    for_each_completion_of(path, 0..half, &mut take)?;
    for_each_completion_of(path, last..u64::MAX, &mut take)
}

/// Calls `take` with the completions whose lines begin at these bytes.
fn for_each_completion_of(
    path: &Path,
    begins: Range<u64>,
    take: &mut impl FnMut(CompletionRecord),
) -> Result<(), TrackingError> {
    let read = for_each_line(path, begins, |line| {
        if let Ok(record) = serde_json::from_slice::<CompletionRecord>(line) {
            take(record.without_tokens());
        }
        Ok(())
    });
    read.map_err(TrackingError::file("read", path))
}

/// Calls `take` with each line of a file that begins at these bytes, without its line break; never if the
/// file is missing.
fn for_each_line(
    path: &Path,
    begins: Range<u64>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = match rlt_files::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => BufReader::new(opened?),
    };
    let (mut at, mut line) = (begins.start, Vec::new());
    if let Some(before) = begins.start.checked_sub(1) {
        // Skips the rest of the line that begins before the range, or only its line break.
        file.seek(SeekFrom::Start(before))?;
        at = before + file.read_until(b'\n', &mut line)? as u64;
        line.clear();
    }
    while at < begins.end {
        match file.read_until(b'\n', &mut line)? {
            0 => break,
            num_read => at += num_read as u64,
        }
        take(line.strip_suffix(b"\n").unwrap_or(&line))?;
        line.clear();
    }
    Ok(())
}

fn line(record: &impl Serialize) -> Vec<u8> {
    // Numbers, strings and maps with string keys always serialise.
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    line.push(b'\n');
    line
}
