//! Where metrics go: `metrics.jsonl`, `completions.jsonl`, TensorBoard, Prometheus, the terminal.
//!
//! ```text
//! step -> Trackers::log -+- bounded queue -> thread -> metrics.jsonl
//!                        +- bounded queue -> thread -> events/
//!                        +- bounded queue -> thread -> /metrics
//! ```
//! A tracker that blocks, fails or was never there costs the training one failed `try_send` a step and is
//! named in [`Trackers::finish`]; it never delays or ends the training. Names and units are in
//! `docs/metrics.md`; what a metric means is not known here.

mod append_file;
mod completion_record;
pub mod console;
mod lane;
mod prometheus;
mod records;
mod step_log;
mod tensorboard;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use completion_record::{CompletionRecord, TrainedCompletion};
pub use lane::TrackerReport;
use lane::{Item, Lane};
pub use records::{Stage, StepMetrics};
pub use step_log::{read_completions, read_steps};

use crate::storage::error_chain;

/// How long the end of a run waits for slow trackers.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// An act of a tracker that failed.
#[derive(Debug, thiserror::Error)]
pub enum TrackingError {
    /// A file or folder could not be opened, read or written.
    #[error("failed to {act} {}", path.display())]
    File {
        /// What was tried.
        act: &'static str,
        /// On which path.
        path: std::path::PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The Prometheus endpoint could not listen, for example because the port is taken.
    #[error("failed to listen on {address} for Prometheus")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("failed to start the thread of tracker {tracker}")]
    Thread {
        /// The tracker.
        tracker: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl TrackingError {
    fn file(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { act, path, source }
    }
}

/// One place that metrics go to. It is driven from a thread of its own and may take as long as it likes.
trait Tracker: Send {
    /// Takes one finished step.
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError>;

    /// Whether [`Self::log_completions`] does anything: completions of long runs are large, so they are queued
    /// for no other tracker.
    fn takes_completions(&self) -> bool {
        false
    }

    /// Takes completions of one step or evaluation.
    fn log_completions(&mut self, _completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        Ok(())
    }

    /// Makes everything so far survive a power loss.
    fn sync(&mut self) -> Result<(), TrackingError> {
        Ok(())
    }
}

/// What to track and where a resumed run stands.
#[derive(Clone, Copy, Debug)]
pub struct TrackersOptions<'a> {
    /// The run folder; it exists.
    pub folder: &'a Path,
    /// The last finished step of the checkpoint that the run goes on from; everything logged after it is
    /// forgotten, because it will happen again. None starts afresh.
    pub resumed_after: Option<(Stage, u64)>,
    /// Serve `/metrics` on this port of all interfaces; 0 for any free one.
    pub prometheus_port: Option<u16>,
}

/// All trackers of a run.
pub struct Trackers {
    lanes: Vec<Lane>,
    dead: Vec<TrackerReport>,
    prometheus: Option<prometheus::Endpoint>,
}

impl Trackers {
    /// Opens every tracker that `options` ask for. One that cannot be opened is reported as a warning and by
    /// [`finish`](Self::finish), and the others go on without it.
    pub fn open(options: &TrackersOptions<'_>) -> Self {
        let mut trackers = Self { lanes: Vec::new(), dead: Vec::new(), prometheus: None };
        let TrackersOptions { folder, resumed_after, .. } = *options;
        let history = step_log::StepLog::open(folder, resumed_after).map(|(log, history)| {
            trackers.add("metrics.jsonl", Ok(Box::new(log)));
            history
        });
        let history = history.unwrap_or_else(|error| {
            trackers.add("metrics.jsonl", Err(error));
            Vec::new()
        });
        let completions = step_log::CompletionLog::open(folder, resumed_after);
        trackers.add("completions.jsonl", completions.map(|log| Box::new(log) as Box<dyn Tracker>));
        let events = tensorboard::EventLog::open(&folder.join("events"), &history);
        trackers.add("tensorboard", events.map(|log| Box::new(log) as Box<dyn Tracker>));
        if let Some(port) = options.prometheus_port {
            match prometheus::serve(port) {
                Ok((tracker, endpoint)) => {
                    trackers.prometheus = Some(endpoint);
                    trackers.add("prometheus", Ok(Box::new(tracker)));
                }
                Err(error) => trackers.add("prometheus", Err(error)),
            }
        }
        trackers
    }

    /// Hands one finished step to every tracker and returns at once.
    pub fn log(&self, metrics: &StepMetrics) {
        let metrics = Arc::new(metrics.clone());
        self.lanes.iter().for_each(|lane| lane.send(Item::Step(metrics.clone())));
    }

    /// Hands completions of one step or evaluation to the trackers that take them and returns at once.
    pub fn completions(&self, completions: Vec<CompletionRecord>) {
        let completions: Arc<[CompletionRecord]> = completions.into();
        let taking = self.lanes.iter().filter(|lane| lane.takes_completions());
        taking.for_each(|lane| lane.send(Item::Completions(completions.clone())));
    }

    /// Waits until everything logged so far would survive a power loss, but never longer than `timeout`. To
    /// be called before a checkpoint is committed, so that no step of the checkpoint is missing from the
    /// logs. Returns whether all trackers made it.
    pub fn sync(&self, timeout: Duration) -> bool {
        lane::sync_all(&self.lanes, timeout)
    }

    /// Where Prometheus can scrape, where that was asked for and works.
    pub fn prometheus_address(&self) -> Option<SocketAddr> {
        self.prometheus.as_ref().map(prometheus::Endpoint::address)
    }

    /// Waits a few seconds for the trackers to write what they have, then lets them go. Returns those that
    /// lost something or failed.
    pub fn finish(self) -> Vec<TrackerReport> {
        self.sync(FINISH_TIMEOUT);
        let reports = self.lanes.iter().map(Lane::report).filter(TrackerReport::has_losses);
        self.dead.iter().cloned().chain(reports).collect()
    }

    fn add(&mut self, name: &'static str, tracker: Result<Box<dyn Tracker>, TrackingError>) {
        match tracker.and_then(|tracker| Lane::start(name, tracker)) {
            Ok(lane) => self.lanes.push(lane),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(tracker = name, error, "the run goes on without a tracker");
                self.dead.push(TrackerReport { name, num_lost: 0, last_error: Some(error) });
            }
        }
    }
}

#[cfg(test)]
mod tests;
