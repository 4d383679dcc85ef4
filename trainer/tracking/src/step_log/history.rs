//! Steps of a run from before a tracker was opened, read from the run's log when they are needed, so that
//! memory does not grow with the run.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Stage, StepMetrics, TrackingError};

/// Maximum number of steps that are in memory at once.
const CHUNK_STEPS: usize = 256;

/// Steps of a run from before a tracker was opened, in the order of the run.
#[derive(Clone, Debug, Default)]
pub struct History(Source);

#[derive(Clone, Debug)]
enum Source {
    /// Steps in memory.
    Steps(Arc<[StepMetrics]>),
    /// Lines of a `metrics.jsonl` before the byte `end`, up to the step `last` if there is one.
    Log { path: PathBuf, end: u64, last: Option<(Stage, u64)> },
}

impl Default for Source {
    fn default() -> Self {
        Self::Steps(Arc::default())
    }
}

/// Position of a reader in a history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HistoryPosition {
    /// Number of steps that were read, or of bytes of the log.
    offset: u64,
    /// Last step that was read.
    latest: Option<(Stage, u64)>,
}

impl From<Vec<StepMetrics>> for History {
    fn from(steps: Vec<StepMetrics>) -> Self {
        Self(Source::Steps(steps.into()))
    }
}

impl History {
    /// Returns the steps of the log at `path` before the byte `end`, up to the step `last` if it is given.
    /// Incomplete lines, and lines that repeat a step, are skipped.
    pub(crate) fn of_log(path: PathBuf, end: u64, last: Option<(Stage, u64)>) -> Self {
        Self(Source::Log { path, end, last })
    }

    /// Returns the first step.
    pub(crate) fn first(&self) -> Result<Option<StepMetrics>, TrackingError> {
        Ok(self.read(&mut HistoryPosition::default())?.into_iter().next())
    }

    /// Calls `take` with each step.
    pub(crate) fn for_each(
        &self,
        mut take: impl FnMut(&StepMetrics) -> Result<(), TrackingError>,
    ) -> Result<(), TrackingError> {
        let mut position = HistoryPosition::default();
        loop {
            let steps = self.read(&mut position)?;
            if steps.is_empty() {
                return Ok(());
            }
            steps.iter().try_for_each(&mut take)?;
        }
    }

    /// Returns the next steps after a position, at most [`CHUNK_STEPS`]; none at the end. If reading fails,
    /// the position is unchanged.
    pub(crate) fn read(&self, position: &mut HistoryPosition) -> Result<Vec<StepMetrics>, TrackingError> {
        match &self.0 {
            Source::Steps(steps) => {
                let next = steps.iter().skip(position.offset as usize);
                let next: Vec<StepMetrics> = next.take(CHUNK_STEPS).cloned().collect();
                position.offset += next.len() as u64;
                Ok(next)
            }
            Source::Log { path, end, last } => {
                let read = read_log(path, *end, *last, *position).map_err(TrackingError::file("read", path));
                let (steps, next) = read?;
                *position = next;
                Ok(steps)
            }
        }
    }

    /// Number of steps after a position, or of lines of the log.
    pub(crate) fn num_left(&self, position: &HistoryPosition) -> usize {
        match &self.0 {
            Source::Steps(steps) => steps.len().saturating_sub(position.offset as usize),
            Source::Log { path, end, .. } => {
                // An error is ignored here, because reading the steps reports it.
                let lines = lines(path, position.offset, *end).ok().flatten();
                lines.map_or(0, |lines| lines.split(b'\n').map_while(Result::ok).count())
            }
        }
    }
}

/// Reads the bytes of a file between two offsets; `None` if the file is missing.
fn lines(path: &Path, offset: u64, end: u64) -> io::Result<Option<io::Take<BufReader<File>>>> {
    let mut file = match rlt_files::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    file.seek(SeekFrom::Start(offset))?;
    Ok(Some(BufReader::new(file).take(end.saturating_sub(offset))))
}

fn read_log(
    path: &Path,
    end: u64,
    last: Option<(Stage, u64)>,
    mut position: HistoryPosition,
) -> io::Result<(Vec<StepMetrics>, HistoryPosition)> {
    let (mut steps, mut line) = (Vec::new(), Vec::new());
    let Some(mut lines) = lines(path, position.offset, end)? else { return Ok((steps, position)) };
    while steps.len() < CHUNK_STEPS {
        line.clear();
        let num_bytes = lines.read_until(b'\n', &mut line)?;
        if num_bytes == 0 {
            break;
        }
        position.offset += num_bytes as u64;
        let Ok(metrics) = serde_json::from_slice::<StepMetrics>(&line) else { continue };
        let step = metrics.position();
        if last.is_none_or(|last| step <= last) && position.latest.is_none_or(|latest| latest < step) {
            position.latest = Some(step);
            steps.push(metrics);
        }
    }
    Ok((steps, position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64) -> String {
        let metrics =
            StepMetrics { stage: Stage::Training, step, timestamp: 1.0, values: Default::default() };
        serde_json::to_string(&metrics).unwrap() + "\n"
    }

    #[test]
    fn a_long_log_is_read_in_chunks_up_to_its_end_and_each_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let num_steps = 3 * CHUNK_STEPS as u64;
        let kept: String = (1..=num_steps).map(line).collect::<String>() + "{\"torn\n" + &line(7);
        std::fs::write(&path, kept.clone() + &line(num_steps + 1)).unwrap();
        for (last, expected) in [(None, num_steps), (Some((Stage::Training, 5)), 5)] {
            let history = History::of_log(path.clone(), kept.len() as u64, last);
            assert_eq!(history.first().unwrap().map(|metrics| metrics.step), Some(1));
            let mut position = HistoryPosition::default();
            assert_eq!(history.num_left(&position), num_steps as usize + 2, "lines");
            assert!(history.read(&mut position).unwrap().len() <= CHUNK_STEPS);
            let mut steps = Vec::new();
            let read = history.for_each(|metrics| {
                steps.push(metrics.step);
                Ok(())
            });
            assert!(read.is_ok());
            assert_eq!(steps, (1..=expected).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_log_that_is_missing_has_no_steps_and_one_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let of = |path: PathBuf| History::of_log(path, 100, None);
        assert_eq!(of(folder.path().join("none")).first().unwrap(), None);
        assert!(of(folder.path().to_owned()).first().is_err());
        assert_eq!(History::default().first().unwrap(), None);
    }
}
