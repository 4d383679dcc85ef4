//! A tracker behind a bounded queue and a separate thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::waiting::{ByteBudget, Footprint as _, MAX_BYTES, ReservedBytes};
use super::{CompletionRecord, RunEnd, StepMetrics, Tracker, TrackingError, error_chain};

/// Maximum number of items that wait for a slow tracker; their bytes are limited, too ([`MAX_BYTES`]).
const QUEUE_LEN: usize = 256;

/// A message to a tracker's thread.
pub(super) enum Item {
    Step(Arc<StepMetrics>),
    Completions(Arc<[CompletionRecord]>),
    /// Request for an answer once all earlier items would survive a power loss.
    Sync(SyncSender<()>),
    /// Request for an answer once the tracker has recorded the end of the run.
    End(RunEnd, SyncSender<()>),
}

impl Item {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Step(metrics) => metrics.num_bytes(),
            Self::Completions(completions) => completions.num_bytes(),
            Self::Sync(_) | Self::End(..) => 0,
        }
    }
}

/// An item in the queue, whose bytes count against the limit until the tracker has taken it.
struct Queued {
    item: Item,
    _bytes: Option<ReservedBytes>,
}

/// Report about one tracker at the end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackerReport {
    /// Name of the tracker.
    pub name: &'static str,
    /// Number of steps and lists of completions that were lost, because the tracker was too slow or failed.
    pub num_lost: u64,
    /// Last error of the tracker, with all its causes.
    pub last_error: Option<String>,
}

impl TrackerReport {
    pub(super) fn has_losses(&self) -> bool {
        self.num_lost > 0 || self.last_error.is_some()
    }
}

/// Sending end of the queue of one tracker.
pub(super) struct Lane {
    name: &'static str,
    sender: SyncSender<Queued>,
    budget: ByteBudget,
    takes_completions: bool,
    is_file: bool,
    losses: Arc<Losses>,
}

#[derive(Default)]
struct Losses {
    num_lost: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Losses {
    fn lose_one(&self) -> u64 {
        self.num_lost.fetch_add(1, Ordering::Relaxed)
    }
}

impl Lane {
    pub(super) fn start(name: &'static str, tracker: Box<dyn Tracker>) -> Result<Self, TrackingError> {
        let (sender, receiver) = sync_channel(QUEUE_LEN);
        let losses = Arc::new(Losses::default());
        let (takes_completions, is_file) = (tracker.takes_completions(), tracker.is_file());
        let budget = ByteBudget::new(MAX_BYTES);
        let lane = Self { name, sender, budget, takes_completions, is_file, losses: losses.clone() };
        // Never joined: a tracker that hangs must not delay the end of the run.
        let thread = std::thread::Builder::new().name(format!("track {name}"));
        thread
            .spawn(move || drain(name, tracker, &receiver, &losses))
            .map_err(|source| TrackingError::Thread { tracker: name, source })?;
        Ok(lane)
    }

    /// Whether the tracker records completions.
    pub(super) fn takes_completions(&self) -> bool {
        self.takes_completions
    }

    /// Whether checkpoints wait for the tracker, which is true for files of the run folder.
    pub(super) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Queues an item, or counts it as lost if the queue is full.
    pub(super) fn send(&self, item: Item) {
        let bytes = self.budget.reserve(item.num_bytes());
        let is_queued = bytes.is_some_and(|bytes| {
            let queued = Queued { item, _bytes: Some(bytes) };
            self.sender.try_send(queued).is_ok()
        });
        if !is_queued && self.losses.lose_one() == 0 {
            tracing::warn!(tracker = self.name, "a tracker is too slow; steps are lost");
        }
    }

    /// Records that the tracker was still busy when the run ended, unless it has failed before.
    pub(super) fn was_late(&self, timeout: Duration) {
        let late = || format!("it was still busy {} s after the end of the run", timeout.as_secs());
        self.losses.last_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(late);
    }

    pub(super) fn report(&self) -> TrackerReport {
        let last_error = self.losses.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        TrackerReport { name: self.name, num_lost: self.losses.num_lost.load(Ordering::Relaxed), last_error }
    }
}

/// Outcome of a request to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The tracker has done what it was asked for.
    Done,
    /// The tracker has failed, and its error is recorded.
    Failed,
    /// The tracker is still busy at the end of the time, or its queue is full.
    Late,
}

/// Sends a request to each lane and waits for all answers, at most `timeout` in total. Returns one answer for
/// each lane.
pub(super) fn ask_all(
    lanes: &[&Lane],
    timeout: Duration,
    question: impl Fn(SyncSender<()>) -> Item,
) -> Vec<Answer> {
    let deadline = Instant::now() + timeout;
    let receivers: Vec<Option<Receiver<()>>> = lanes
        .iter()
        .map(|lane| {
            let (sender, receiver) = sync_channel(1);
            let queued = Queued { item: question(sender), _bytes: None };
            lane.sender.try_send(queued).is_ok().then_some(receiver)
        })
        .collect();
    let time_left = || deadline.saturating_duration_since(Instant::now());
    let answer = |receiver: &Receiver<()>| match receiver.recv_timeout(time_left()) {
        Ok(()) => Answer::Done,
        Err(RecvTimeoutError::Disconnected) => Answer::Failed,
        Err(RecvTimeoutError::Timeout) => Answer::Late,
    };
    // Every lane is asked for its answer: one that is late does not hide the answers of others.
    receivers.iter().map(|receiver| receiver.as_ref().map_or(Answer::Late, answer)).collect()
}

fn drain(name: &'static str, mut tracker: Box<dyn Tracker>, items: &Receiver<Queued>, losses: &Losses) {
    for Queued { item, _bytes } in items {
        let (taken, answer) = match item {
            Item::Step(metrics) => (tracker.log_step(&metrics), None),
            Item::Completions(completions) => (tracker.log_completions(&completions), None),
            Item::Sync(answer) => (tracker.sync(), Some(answer)),
            Item::End(end, answer) => (tracker.end(end), Some(answer)),
        };
        match (taken, answer) {
            (Ok(()), Some(answer)) => {
                let _ = answer.try_send(());
            }
            (Ok(()), None) => {}
            (Err(error), answer) => {
                let num_pending = match &error {
                    TrackingError::Pending { num_steps, .. } => *num_steps as u64,
                    _ => 0,
                };
                let error = error_chain(&error);
                if answer.is_none() && losses.lose_one() == 0 {
                    tracing::warn!(tracker = name, error, "a tracker fails; steps are lost");
                }
                losses.num_lost.fetch_add(num_pending, Ordering::Relaxed);
                *losses.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }
}
