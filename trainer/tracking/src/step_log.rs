//! `metrics.jsonl` and `completions.jsonl`: one JSON object a line, every step exactly once.

use std::fs;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::append_file::AppendFile;
use super::{CompletionRecord, Stage, StepMetrics, Tracker, TrackingError};

/// How files begin that are not written completely: `rlt-trainer` removes them.
const UNFINISHED: &str = ".new-";

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
        replace(&path, |file| steps.iter().try_for_each(|metrics| file.write_all(&line(metrics))))?;
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
        #[derive(Deserialize)]
        struct Position {
            step: u64,
        }
        let path = folder.join("completions.jsonl");
        // Line by line, and as they are: the file of a long run does not fit into memory.
        let stays = |line: &[u8]| {
            let step = serde_json::from_slice(line).map(|Position { step }| step);
            step.is_ok_and(|step| resumed_after.is_some_and(|last| (Stage::Training, step) <= last))
        };
        replace(&path, |file| {
            for_each_line(
                &path,
                |line| if stays(line) { file.write_all(&[line, b"\n"].concat()) } else { Ok(()) },
            )
        })?;
        Ok(Self(AppendFile::open(&path)?))
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

/// All completions of a `completions.jsonl` in order, without the numbers of their tokens; none where the
/// file is missing. Lines that a kill has torn are passed over.
///
/// # Errors
/// The file exists and cannot be read.
pub fn read_completions(path: &Path) -> Result<Vec<CompletionRecord>, TrackingError> {
    let mut records = Vec::new();
    let read = for_each_line(path, |line| {
        let record = serde_json::from_slice::<CompletionRecord>(line);
        records.extend(record.ok().map(CompletionRecord::without_tokens));
        Ok(())
    });
    read.map_err(TrackingError::file("read", path))?;
    Ok(records)
}

/// Every line of a file of JSON objects that parses; none where the file is missing.
pub(super) fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, TrackingError> {
    let mut records = Vec::new();
    let read = for_each_line(path, |line| {
        records.extend(serde_json::from_slice::<T>(line).ok());
        Ok(())
    });
    read.map_err(TrackingError::file("read", path))?;
    Ok(records)
}

/// Calls `take` with each line of a file, its end left out; with none where the file is missing.
fn for_each_line(path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => BufReader::new(opened?),
    };
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
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

/// Replaces the file by what `write` writes, in one step.
fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), TrackingError> {
    let replace = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
        let mut buffered = BufWriter::new(file);
        write(&mut buffered)?;
        let file = buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_data()?;
        readable_by_all(file.as_file())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    replace().map_err(TrackingError::file("rewrite", path))
}

/// Temporary files are private to their owner; logs have the default permissions.
fn readable_by_all(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}
