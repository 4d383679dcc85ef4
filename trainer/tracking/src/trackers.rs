//! All trackers of a run, each behind a queue and a thread of its own.
//!
//! A tracker that blocks, fails or was never there costs the training one failed `try_send` a step and is
//! named in [`Trackers::finish`]; it never delays or ends the training.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::lane::{self, Item, Lane};
use crate::mlflow::{Mlflow, MlflowOptions};
use crate::trackio::{Trackio, TrackioOptions};
use crate::wandb::{OfflineRun, WandbOptions};
use crate::{
    CompletionRecord, RunDescription, RunEnd, Stage, StepMetrics, Tracker, TrackerReport, TrackingError,
    error_chain, step_log, tensorboard,
};

/// How long the end of a run waits for slow trackers.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Trackers besides the files that every run has.
#[derive(Clone, Debug, Default)]
pub struct RemoteTrackers {
    /// A tracking server of MLflow.
    pub mlflow: Option<MlflowOptions>,
    /// A server of Trackio.
    pub trackio: Option<TrackioOptions>,
    /// Files of Weights & Biases in the folder `wandb` of the run folder.
    pub wandb: Option<WandbOptions>,
}

/// What to track, and the step from which a run resumes.
#[derive(Clone, Debug)]
pub struct TrackersOptions<'a> {
    /// The run folder; it exists.
    pub folder: &'a Path,
    /// The last finished step of the checkpoint from which the run resumes; steps logged after it are
    /// removed, because they are repeated. `None` starts a new log.
    pub resumed_after: Option<(Stage, u64)>,
    /// Other trackers.
    pub remote: RemoteTrackers,
}

/// All trackers of a run.
#[derive(Default)]
pub struct Trackers {
    pub(crate) lanes: Vec<Lane>,
    dead: Vec<TrackerReport>,
}

impl Trackers {
    /// Opens every tracker that `options` ask for. One that cannot be opened is reported as a warning and by
    /// [`finish`](Self::finish), and the others continue without it.
    pub fn open(options: &TrackersOptions<'_>) -> Self {
        let mut trackers = Self::default();
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
        trackers.add("completions.jsonl", completions.map(boxed));
        let events = tensorboard::EventLog::open(&folder.join("events"), &history);
        trackers.add("tensorboard", events.map(boxed));
        trackers.add_remote(options, &history);
        trackers
    }

    fn add_remote(&mut self, options: &TrackersOptions<'_>, history: &[StepMetrics]) {
        let TrackersOptions { folder, remote, .. } = options;
        let run = || RunDescription::read(folder);
        if let Some(mlflow) = &remote.mlflow {
            let tracker = run().and_then(|run| Mlflow::open(mlflow, run, history));
            self.add("mlflow", tracker.map(boxed));
        }
        if let Some(trackio) = &remote.trackio {
            let tracker = run().and_then(|run| Trackio::open(trackio, run, history));
            self.add("trackio", tracker.map(boxed));
        }
        if let Some(wandb) = &remote.wandb {
            let folder = folder.join("wandb");
            let tracker = run().and_then(|run| OfflineRun::open_alone(&folder, wandb, run, history));
            self.add("wandb", tracker.map(boxed));
        }
    }

    /// Adds a tracker, or reports why there is none.
    pub fn add(&mut self, name: &'static str, tracker: Result<Box<dyn Tracker>, TrackingError>) {
        match tracker.and_then(|tracker| Lane::start(name, tracker)) {
            Ok(lane) => self.lanes.push(lane),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(tracker = name, error, "the run continues without a tracker");
                self.dead.push(TrackerReport { name, num_lost: 0, last_error: Some(error) });
            }
        }
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

    /// Waits until the files would survive a power loss, but never longer than `timeout`. To be called before
    /// a checkpoint is committed, so that no step of the checkpoint is missing from the logs; what a server
    /// has not got by then is sent again from the logs. Returns whether all files made it.
    pub fn sync(&self, timeout: Duration) -> bool {
        let files: Vec<&Lane> = self.lanes.iter().filter(|lane| lane.is_file()).collect();
        lane::ask_all(&files, timeout, Item::Sync)
    }

    /// Waits a few seconds for the trackers to write what they have and that the run has ended, then lets
    /// them go. Returns those that lost something or failed.
    pub fn finish(self, end: RunEnd) -> Vec<TrackerReport> {
        let lanes: Vec<&Lane> = self.lanes.iter().collect();
        lane::ask_all(&lanes, FINISH_TIMEOUT, |answer| Item::End(end, answer));
        let reports = self.lanes.iter().map(Lane::report).filter(TrackerReport::has_losses);
        self.dead.iter().cloned().chain(reports).collect()
    }
}

fn boxed(tracker: impl Tracker + 'static) -> Box<dyn Tracker> {
    Box::new(tracker)
}
