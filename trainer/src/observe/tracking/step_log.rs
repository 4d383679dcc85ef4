//! `metrics.jsonl` and `completions.jsonl`: one JSON object a line, every step exactly once.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::append_file::AppendFile;
use super::{CompletionRecord, Stage, StepMetrics, Tracker, TrackingError};
use crate::storage::run_folder::UNFINISHED;

/// `metrics.jsonl`.
pub(super) struct StepLog(AppendFile);

/// `completions.jsonl`.
pub(super) struct CompletionLog(AppendFile);

impl StepLog {
    /// Opens the log in `folder`, forgetting all steps after `resumed_after`, or all of them. Returns the
    /// steps that stay, in order.
    pub(super) fn open(
        folder: &Path,
        resumed_after: Option<(Stage, u64)>,
    ) -> Result<(Self, Vec<StepMetrics>), TrackingError> {
        let path = folder.join("metrics.jsonl");
        let mut steps = read_steps(&path)?;
        steps.retain(|metrics| resumed_after.is_some_and(|last| metrics.position() <= last));
        rewrite(&path, &steps)?;
        Ok((Self(AppendFile::open(&path)?), steps))
    }
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
    /// Opens the log in `folder`, forgetting all completions after `resumed_after`, or all of them.
    pub(super) fn open(folder: &Path, resumed_after: Option<(Stage, u64)>) -> Result<Self, TrackingError> {
        let path = folder.join("completions.jsonl");
        let mut completions: Vec<CompletionRecord> = read_lines(&path)?;
        completions.retain(|completion| {
            resumed_after.is_some_and(|last| (Stage::Training, completion.step) <= last)
        });
        rewrite(&path, &completions)?;
        Ok(Self(AppendFile::open(&path)?))
    }
}

impl Tracker for CompletionLog {
    fn log_step(&mut self, _metrics: &StepMetrics) -> Result<(), TrackingError> {
        Ok(())
    }

    fn log_completions(&mut self, completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        self.0.append(&completions.iter().flat_map(line).collect::<Vec<u8>>())
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.0.sync()
    }
}

/// All steps of a `metrics.jsonl` in the order of the run, the last of those logged twice; none where the
/// file is missing. Lines that a kill has torn are passed over.
///
/// # Errors
/// The file exists and cannot be read.
pub fn read_steps(path: &Path) -> Result<Vec<StepMetrics>, TrackingError> {
    let mut steps: Vec<StepMetrics> = read_lines(path)?;
    // Stable, so that of two lines of one step the later stays behind the earlier.
    steps.sort_by_key(StepMetrics::position);
    let mut unique: Vec<StepMetrics> = Vec::with_capacity(steps.len());
    for metrics in steps {
        match unique.last_mut() {
            Some(last) if last.position() == metrics.position() => *last = metrics,
            _ => unique.push(metrics),
        }
    }
    Ok(unique)
}

/// Every line of a file of JSON objects that parses; none where the file is missing.
pub(crate) fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, TrackingError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(TrackingError::file("read", path))?,
    };
    let lines = bytes.split(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

fn line(record: &impl Serialize) -> Vec<u8> {
    // WeightDtype, strings and maps with string keys always serialise.
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Replaces the file by one of exactly these records, in one step.
fn rewrite(path: &Path, records: &[impl Serialize]) -> Result<(), TrackingError> {
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
        for record in records {
            file.write_all(&line(record))?;
        }
        file.as_file().sync_data()?;
        readable_by_all(file.as_file())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(TrackingError::file("rewrite", path))
}

/// Temporary files are private to their owner; logs are for everybody whom the folder lets in.
fn readable_by_all(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}
