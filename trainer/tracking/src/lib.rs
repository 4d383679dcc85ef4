//! The records of a run folder (`metrics.jsonl`, `completions.jsonl`), and the trackers that they go to:
//! TensorBoard, Weights & Biases, MLflow, Trackio.
//!
//! ```text
//! step -> Trackers::log -+- bounded queue -> thread -> metrics.jsonl
//!                        +- bounded queue -> thread -> events/
//!                        +- bounded queue -> thread -> MLflow, Trackio
//! ```
//! The trainer logs through [`Trackers`] while it trains; [`replay`] sends the files of any run again.
//! There are no tensors here, and what a metric means is not known; names and units are in
//! `docs/metrics.md`.

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
pub use step_log::{History, for_each_completion, for_each_step, read_completions, read_steps};
pub use trackers::{RemoteTrackers, Trackers, TrackersOptions};

/// An act of a tracker that failed.
#[derive(Debug, thiserror::Error)]
pub enum TrackingError {
    /// A file or folder could not be opened, read or written.
    #[error("failed to {act} {}", path.display())]
    File {
        /// The failed operation as a verb, such as `open`.
        act: &'static str,
        /// The file or folder that the operation failed on.
        path: std::path::PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// An endpoint could not listen, for example because the port is taken.
    #[error("failed to listen on {address} for Prometheus")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("failed to start the thread of tracker {tracker}")]
    Thread {
        /// Name of the tracker.
        tracker: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A server could not be reached or did not answer in time.
    #[error("failed to {act} at {url}")]
    Unreachable {
        /// The failed request as a verb, such as `find an experiment`.
        act: &'static str,
        /// The server's address.
        url: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// The answer of a server is too long or too slow, or breaks off.
    #[error("failed to {act} at {url}")]
    Answer {
        /// The request whose answer was read, as a verb.
        act: &'static str,
        /// The server's address.
        url: String,
        /// The error at which reading stopped.
        source: std::io::Error,
    },
    /// A server refused, or answered something else than expected.
    #[error("failed to {act} at {url}: it answered {status}: {answer}")]
    Refused {
        /// The refused request as a verb.
        act: &'static str,
        /// The server's address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of the answer.
        answer: String,
    },
    /// Steps that a server did not get until the run ended.
    #[error("{num_steps} steps were not logged")]
    Pending {
        /// Number of steps that the server lacks.
        num_steps: usize,
        /// The error of the last try.
        source: Box<TrackingError>,
    },
    /// The queue of a tracker has as many records, or bytes of records, as are kept.
    #[error("{num_waiting} records wait for the tracker, which is the limit: the newest is left out")]
    Full {
        /// Number of records that wait.
        num_waiting: usize,
    },
    /// The folder is none of a run.
    #[error("{} is no run folder: it has no manifest.yaml with a name", path.display())]
    NoRun {
        /// The folder that was read.
        path: std::path::PathBuf,
    },
}

impl TrackingError {
    fn file(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { act, path, source }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All steps are done.
    Complete,
    /// The run was asked to stop, and may be resumed.
    Stopped,
    /// The run failed.
    Failed,
}

/// One place that metrics go to. It is driven from a thread of its own and may take as long as it likes.
pub trait Tracker: Send {
    /// Takes one finished step.
    ///
    /// # Errors
    /// The step is lost.
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError>;

    /// Whether [`Self::log_completions`] does anything: completions of long runs are large, so they are
    /// queued for no other tracker.
    fn takes_completions(&self) -> bool {
        false
    }

    /// Takes completions of one step or evaluation.
    ///
    /// # Errors
    /// They are lost.
    fn log_completions(&mut self, _completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        Ok(())
    }

    /// Whether a checkpoint waits for [`Self::sync`]: true for files of the run folder.
    fn is_file(&self) -> bool {
        true
    }

    /// Makes everything so far survive a power loss.
    ///
    /// # Errors
    /// It might not.
    fn sync(&mut self) -> Result<(), TrackingError> {
        Ok(())
    }

    /// Takes note that the run has ended.
    ///
    /// # Errors
    /// Something that was taken earlier is lost after all, or the end is.
    fn end(&mut self, _end: RunEnd) -> Result<(), TrackingError> {
        Ok(())
    }
}

/// An error with all its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests;
