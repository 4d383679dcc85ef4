//! Records of a run folder (`metrics.jsonl`, `completions.jsonl`), and trackers to which they are sent:
//! TensorBoard, Weights & Biases, MLflow, Trackio.
//!
//! ```text
//! step -> Trackers::log -+- bounded queue -> thread -> metrics.jsonl
//!                        +- bounded queue -> thread -> events/
//!                        +- bounded queue -> thread -> MLflow, Trackio
//! ```
//! The trainer logs through [`Trackers`] while it trains; [`replay`] sends the files of any run again. This
//! crate does not use tensors and does not interpret metrics; their names and units are in `docs/metrics.md`.

mod append_file;
mod backlog;
mod completion_record;
pub mod http;
mod lane;
pub mod mlflow;
mod records;
mod reopening;
pub mod replay;
mod rest;
mod run_description;
mod secrets;
mod step_log;
mod tensorboard;
mod trackers;
pub mod trackio;
mod waiting;
pub mod wandb;

use std::net::SocketAddr;
use std::path::Path;

pub use backlog::{Backlog, TrackingServer};
pub use completion_record::{CompletionRecord, TrainedCompletion};
pub use lane::TrackerReport;
pub use records::{Metrics, Stage, StepMetrics};
pub use run_description::RunDescription;
pub use secrets::Secrets;
pub use step_log::{History, for_each_completion, for_each_completion_at_ends, for_each_step};
pub use trackers::{RemoteTrackers, Trackers, TrackersOptions};

/// A failed operation of a tracker.
#[derive(Debug, thiserror::Error)]
pub enum TrackingError {
    /// A file or folder could not be opened, read or written.
    #[error("failed to {act} {}", path.display())]
    File {
        /// Failed operation as a verb, such as `open`.
        act: &'static str,
        /// File or folder on which the operation failed.
        path: std::path::PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A port could not be listened on, for example because it is in use.
    #[error("failed to listen on {address} for Prometheus")]
    Listen {
        /// Address of the port.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("failed to start the thread of tracker {tracker}")]
    Thread {
        /// Name of the tracker.
        tracker: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A server could not be reached or did not answer in time.
    #[error("failed to {act} at {url}")]
    Unreachable {
        /// Failed request as a verb, such as `find an experiment`.
        act: &'static str,
        /// Address of the server.
        url: String,
        /// Error of the HTTP client.
        source: reqwest::Error,
    },
    /// The answer of a server is too long or too slow, or ends early.
    #[error("failed to {act} at {url}")]
    Answer {
        /// Request whose answer was read, as a verb.
        act: &'static str,
        /// Address of the server.
        url: String,
        /// Error at which reading stopped.
        source: std::io::Error,
    },
    /// A server rejected a request, or returned an unexpected answer.
    #[error("failed to {act} at {url}: it answered {status}: {answer}")]
    Refused {
        /// Rejected request as a verb.
        act: &'static str,
        /// Address of the server.
        url: String,
        /// HTTP status of the answer.
        status: u16,
        /// Beginning of the answer.
        answer: String,
    },
    /// Some steps were not sent to a server before the run ended.
    #[error("{num_steps} steps were not logged")]
    Pending {
        /// Number of steps that the server does not have.
        num_steps: usize,
        /// Error of the last attempt.
        source: Box<TrackingError>,
    },
    /// The queue of a tracker has reached its maximum number of records or bytes.
    #[error("{num_waiting} records wait for the tracker, which is the limit: the newest is left out")]
    Full {
        /// Number of records in the queue.
        num_waiting: usize,
    },
    /// The folder is not a run folder.
    #[error("{} is no run folder: it has no manifest.yaml with a name", path.display())]
    NoRun {
        /// Folder that was read.
        path: std::path::PathBuf,
    },
}

impl TrackingError {
    fn file(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { act, path, source }
    }
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The run has completed all steps.
    Complete,
    /// The run was asked to stop, and may be resumed.
    Stopped,
    /// The run failed.
    Failed,
}

/// A destination of metrics. It is called from a separate thread and may block.
pub trait Tracker: Send {
    /// Logs one finished step.
    ///
    /// # Errors
    /// When the step could not be logged; it is then lost.
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError>;

    /// Whether the tracker records completions. Completions of long runs are large, so they are not queued
    /// for other trackers.
    fn takes_completions(&self) -> bool {
        false
    }

    /// Logs completions of one step or evaluation.
    ///
    /// # Errors
    /// When the completions could not be logged; they are then lost.
    fn log_completions(&mut self, _completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        Ok(())
    }

    /// Whether a checkpoint waits for [`Self::sync`]: true for files of the run folder.
    fn is_file(&self) -> bool {
        true
    }

    /// Ensures that everything logged so far survives a power loss.
    ///
    /// # Errors
    /// When this could not be ensured.
    fn sync(&mut self) -> Result<(), TrackingError> {
        Ok(())
    }

    /// Records the end of the run.
    ///
    /// # Errors
    /// When earlier records, or the end of the run, could not be written or sent.
    fn end(&mut self, _end: RunEnd) -> Result<(), TrackingError> {
        Ok(())
    }
}

/// Formats an error with all its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests;
