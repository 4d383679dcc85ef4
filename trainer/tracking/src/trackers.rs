//! All trackers of a run, each with a queue and a thread.
//!
//! A tracker that blocks or fails costs the training one failed `try_send` per step, and is named by
//! [`Trackers::finish`]. It never delays or ends the training.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lane::{self, Answer, Item, Lane};
use crate::mlflow::{Mlflow, MlflowOptions};
use crate::reopening::{Open, Reopening, Takes};
use crate::trackio::{Trackio, TrackioOptions};
use crate::wandb::{OfflineRun, WandbOptions};
use crate::{
    CompletionRecord, History, RunDescription, RunEnd, Stage, StepMetrics, Tracker, TrackerReport,
    TrackingError, error_chain, step_log, tensorboard,
};

/// Maximum time that the end of a complete run waits for slow trackers: two requests that time out, and what
/// is queued behind them.
const FINISH_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time that the end of another run waits for slow trackers. A stopped run has a grace period, and
/// the next attempt of a failed one sends what is missing.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Trackers besides the files that every run has.
#[derive(Clone, Debug, Default)]
pub struct RemoteTrackers {
    /// Options of an MLflow server; `None` without one.
    pub mlflow: Option<MlflowOptions>,
    /// Options of a Trackio server; `None` without one.
    pub trackio: Option<TrackioOptions>,
    /// Options of Weights & Biases, whose files are in the folder `wandb` of the run folder; `None` without
    /// them.
    pub wandb: Option<WandbOptions>,
}

/// Options of a run's trackers, and the step from which the run resumes.
#[derive(Clone, Debug)]
pub struct TrackersOptions<'a> {
    /// Run folder, which exists.
    pub folder: &'a Path,
    /// The last finished step of the checkpoint from which the run resumes; steps logged after it are
    /// removed, because they are repeated. `None` starts a new log.
    pub resumed_after: Option<(Stage, u64)>,
    /// Trackers besides the files of the run folder.
    pub remote: RemoteTrackers,
}

/// Trackers of a run.
#[derive(Default)]
pub struct Trackers {
    pub(crate) lanes: Vec<Lane>,
    dead: Vec<TrackerReport>,
    /// Number of logged steps, all of which the trackers in `dead` have lost.
    num_steps: AtomicU64,
}

/// Earlier steps of a resumed run, which its trackers receive.
struct Followed {
    folder: PathBuf,
    resumed_after: Option<(Stage, u64)>,
    /// History of the run; `None` if it could not be read.
    history: Option<History>,
}

impl Followed {
    /// Opens a tracker with the earlier steps: those that were read already, or those of the file in a later
    /// attempt.
    fn by(
        &self,
        open: impl Fn(&History) -> Result<Box<dyn Tracker>, TrackingError> + Send + 'static,
    ) -> Open {
        let (folder, resumed_after) = (self.folder.clone(), self.resumed_after);
        let mut history = self.history.clone();
        Box::new(move || match history.take() {
            Some(history) => open(&history),
            None => open(&step_log::history(&folder, resumed_after)?),
        })
    }
}

impl Trackers {
    /// Opens every tracker of `options`. A tracker that cannot be opened is logged as a warning, and opening
    /// is retried as steps arrive. [`finish`](Self::finish) names it with what it has lost. The other
    /// trackers are not affected.
    pub fn open(options: &TrackersOptions<'_>) -> Self {
        let mut trackers = Self::default();
        let TrackersOptions { folder, resumed_after, .. } = *options;
        // The history is read before any file is truncated. If that fails, each tracker reads it again when
        // it opens, so that a temporary error makes no tracker begin the run anew.
        let history = step_log::history(folder, resumed_after).ok();
        let root = folder.to_path_buf();
        let open = move || step_log::StepLog::open(&root, resumed_after).map(boxed);
        trackers.open_or_wait("metrics.jsonl", Takes::Steps, Box::new(open));
        let root = folder.to_path_buf();
        let open = move || step_log::CompletionLog::open(&root, resumed_after).map(boxed);
        trackers.open_or_wait("completions.jsonl", Takes::Completions, Box::new(open));
        let events = folder.join("events");
        let followed = Followed { folder: folder.to_path_buf(), resumed_after, history };
        let open = followed.by(move |history| tensorboard::EventLog::open(&events, history).map(boxed));
        trackers.open_or_wait("tensorboard", Takes::Steps, open);
        trackers.open_remote(&options.remote, &followed);
        trackers
    }

    fn open_remote(&mut self, remote: &RemoteTrackers, followed: &Followed) {
        let folder = followed.folder.clone();
        let run = move || RunDescription::read(&folder);
        if let Some(mlflow) = remote.mlflow.clone() {
            let run = run.clone();
            let open = followed.by(move |history| Mlflow::open(&mlflow, run()?, history).map(boxed));
            self.open_or_wait("mlflow", Takes::StepsElsewhere, open);
        }
        if let Some(trackio) = remote.trackio.clone() {
            let run = run.clone();
            let open = followed.by(move |history| Trackio::open(&trackio, run()?, history).map(boxed));
            self.open_or_wait("trackio", Takes::StepsElsewhere, open);
        }
        if let Some(wandb) = remote.wandb.clone() {
            let folder = followed.folder.join("wandb");
            let open = followed
                .by(move |history| OfflineRun::open_alone(&folder, &wandb, run()?, history).map(boxed));
            self.open_or_wait("wandb", Takes::Steps, open);
        }
    }

    /// Adds the tracker that `open` returns, now or in a later attempt.
    fn open_or_wait(&mut self, name: &'static str, takes: Takes, mut open: Open) {
        let tracker = open().unwrap_or_else(|error| {
            let error = error_chain(&error);
            tracing::warn!(tracker = name, error, "failed to open a tracker; opening it is retried");
            Box::new(Reopening::new(takes, open))
        });
        self.add(name, Ok(tracker));
    }

    /// Adds a tracker, or logs why it cannot be opened.
    pub fn add(&mut self, name: &'static str, tracker: Result<Box<dyn Tracker>, TrackingError>) {
        match tracker.and_then(|tracker| Lane::start(name, tracker)) {
            Ok(lane) => self.lanes.push(lane),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(
                    tracker = name,
                    error,
                    "failed to open a tracker; the run continues without it"
                );
                self.dead.push(TrackerReport { name, num_lost: 0, last_error: Some(error) });
            }
        }
    }

    /// Queues one finished step for every tracker, without blocking.
    pub fn log(&self, metrics: &StepMetrics) {
        self.num_steps.fetch_add(1, Ordering::Relaxed);
        let metrics = Arc::new(metrics.clone());
        self.lanes.iter().for_each(|lane| lane.send(Item::Step(metrics.clone())));
    }

    /// Queues completions of one step or evaluation for the trackers that record them, without blocking.
    pub fn completions(&self, completions: Vec<CompletionRecord>) {
        let completions: Arc<[CompletionRecord]> = completions.into();
        let taking = self.lanes.iter().filter(|lane| lane.takes_completions());
        taking.for_each(|lane| lane.send(Item::Completions(completions.clone())));
    }

    /// Waits at most `timeout` until the log files would survive a power loss; returns whether all of them
    /// would. Call it before a checkpoint is committed, so that no step of the checkpoint is missing from the
    /// logs. Steps that a server has not received by then are later sent again from the logs.
    pub fn sync(&self, timeout: Duration) -> bool {
        let files: Vec<&Lane> = self.lanes.iter().filter(|lane| lane.is_file()).collect();
        lane::ask_all(&files, timeout, Item::Sync).iter().all(|answer| *answer == Answer::Done)
    }

    /// Waits until the trackers have written their records and the end of the run, at most 90 s after a
    /// complete run and 5 s after another, then drops them. Returns those that lost something, failed or
    /// were still busy.
    pub fn finish(self, end: RunEnd) -> Vec<TrackerReport> {
        let timeout = if end == RunEnd::Complete { FINISH_TIMEOUT } else { STOP_TIMEOUT };
        self.finish_within(timeout, end)
    }

    pub(crate) fn finish_within(self, timeout: Duration, end: RunEnd) -> Vec<TrackerReport> {
        let lanes: Vec<&Lane> = self.lanes.iter().collect();
        let answers = lane::ask_all(&lanes, timeout, |answer| Item::End(end, answer));
        let late = lanes.iter().zip(answers).filter(|(_, answer)| *answer == Answer::Late);
        late.for_each(|(lane, _)| lane.was_late(timeout));
        let reports = self.lanes.iter().map(Lane::report).filter(TrackerReport::has_losses);
        let num_lost = self.num_steps.load(Ordering::Relaxed);
        let dead = self.dead.iter().map(|report| TrackerReport { num_lost, ..report.clone() });
        dead.chain(reports).collect()
    }
}

fn boxed(tracker: impl Tracker + 'static) -> Box<dyn Tracker> {
    Box::new(tracker)
}
