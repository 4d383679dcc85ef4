//! Replay of a run's files, finished or running, to a tracker.

use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::Value;

use crate::mlflow::{Mlflow, MlflowOptions};
use crate::tensorboard::EventLog;
use crate::trackio::{Trackio, TrackioOptions};
use crate::wandb::{OfflineRun, WandbOptions};
use crate::{History, RunDescription, RunEnd, Tracker, TrackingError};

/// Tracker to which a run is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// MLflow tracking server, by its address.
    Mlflow(String),
    /// Trackio server, by its address.
    Trackio(String),
    /// Offline runs of Weights & Biases in this folder.
    Wandb(PathBuf),
    /// TensorBoard event files in this folder.
    TensorBoard(PathBuf),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tracker, place) = text.split_once('=').unwrap_or((text, ""));
        match (tracker, place) {
            ("mlflow", url) if is_url(url) => Ok(Self::Mlflow(url.to_owned())),
            ("trackio", url) if is_url(url) => Ok(Self::Trackio(url.to_owned())),
            ("wandb", folder) if !folder.is_empty() => Ok(Self::Wandb(folder.into())),
            ("tensorboard", folder) if !folder.is_empty() => Ok(Self::TensorBoard(folder.into())),
            _ => {
                Err("expected mlflow=URL or trackio=URL (http:// or https://), wandb=DIR or tensorboard=DIR"
                    .to_owned())
            }
        }
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Names of the run on the tracker; `None` means the job's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Naming {
    /// Name of MLflow's experiment, or of W&B's or Trackio's project.
    pub project: Option<String>,
    /// Name of the run on the tracker.
    pub run_name: Option<String>,
}

/// Summary of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Number of steps and evaluations of the run.
    pub num_steps: usize,
    /// Outcome of the run; `None` while a process works on it.
    pub end: Option<RunEnd>,
}

/// Sends all steps of a run. A server receives the steps that it does not have; files are rewritten.
///
/// # Errors
/// When the folder is not that of a run, or the tracker fails.
pub fn replay(folder: &Path, destination: &Destination, naming: &Naming) -> Result<Replayed, TrackingError> {
    let run = RunDescription::read(folder)?;
    // Determined before the steps are read: a run that ends meanwhile is completed by the next replay.
    let end = end_of(folder);
    let log = folder.join("metrics.jsonl");
    // A process that works on the run appends to it meanwhile.
    let len = fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let steps = History::of_log(log, len, None);
    let mut num_steps = 0;
    steps.for_each(|_| {
        num_steps += 1;
        Ok(())
    })?;
    let mut tracker = open(destination, naming, run, &steps)?;
    match end {
        Some(end) => tracker.end(end)?,
        None => tracker.sync()?,
    }
    Ok(Replayed { num_steps, end })
}

fn open(
    destination: &Destination,
    naming: &Naming,
    run: RunDescription,
    steps: &History,
) -> Result<Box<dyn Tracker>, TrackingError> {
    let Naming { project, run_name } = naming.clone();
    Ok(match destination {
        Destination::Mlflow(url) => {
            let options = MlflowOptions { url: url.clone(), experiment: project, run_name };
            let mut tracker = Mlflow::open(&options, run, steps)?;
            tracker.flush()?;
            Box::new(tracker)
        }
        Destination::Trackio(url) => {
            let options = TrackioOptions { url: url.clone(), project, run_name };
            let mut tracker = Trackio::open(&options, run, steps)?;
            tracker.flush()?;
            Box::new(tracker)
        }
        Destination::Wandb(folder) => {
            let options = WandbOptions { project, entity: None, run_name };
            Box::new(OfflineRun::open(folder, &options, run, steps)?)
        }
        Destination::TensorBoard(folder) => {
            let name = run_name.unwrap_or(run.name);
            Box::new(EventLog::open(&folder.join(name), steps)?)
        }
    })
}

/// Returns how the run of a folder ended; `None` while a process works on it. A run without a result has
/// failed.
fn end_of(folder: &Path) -> Option<RunEnd> {
    // Takes a shared lock for a moment: a running trainer holds it exclusively.
    let lock = rlt_files::open(&folder.join(".lock"));
    if lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))) {
        return None;
    }
    let text = rlt_files::read_to_string(&folder.join("result.json"), rlt_files::MAX_MODEL_JSON_BYTES);
    let result: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
    Some(match result["outcome"].as_str() {
        Some("complete") => RunEnd::Complete,
        Some(_) => RunEnd::Stopped,
        None => RunEnd::Failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_named_by_tracker_and_place() {
        let parsed = |text: &str| text.parse::<Destination>();
        assert_eq!(parsed("mlflow=http://host:5000"), Ok(Destination::Mlflow("http://host:5000".into())));
        assert_eq!(parsed("trackio=https://host"), Ok(Destination::Trackio("https://host".into())));
        assert_eq!(parsed("wandb=a/b"), Ok(Destination::Wandb("a/b".into())));
        assert_eq!(parsed("tensorboard=c"), Ok(Destination::TensorBoard("c".into())));
        for wrong in ["mlflow", "mlflow=host", "trackio=space", "wandb=", "comet=x", ""] {
            assert!(parsed(wrong).unwrap_err().contains("tensorboard=DIR"), "{wrong}");
        }
    }

    #[test]
    fn a_folder_of_no_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let destination = Destination::Wandb(folder.path().join("wandb"));
        let error = replay(folder.path(), &destination, &Naming::default()).unwrap_err();
        assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    }
}
