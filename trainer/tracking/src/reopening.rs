//! A tracker that could not be opened at first, for example because the disk was full for a moment. Records
//! wait for it, and opening is retried as more of them arrive.

use crate::waiting::{BoundedQueue, Footprint, MAX_BYTES};
use crate::{CompletionRecord, RunEnd, StepMetrics, Tracker, TrackingError};

/// Maximum number of waiting records; their bytes are limited, too ([`MAX_BYTES`]).
const MAX_WAITING: usize = 1000;
/// Maximum number of records between two attempts to open the tracker.
const MAX_PAUSE: usize = 64;

/// Function that opens a tracker.
pub(super) type Open = Box<dyn FnMut() -> Result<Box<dyn Tracker>, TrackingError> + Send>;

/// Kind of the records that a tracker takes, which is needed before the tracker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Steps, in a file of the run folder.
    Steps,
    /// Completions, in a file of the run folder.
    Completions,
    /// Steps, on a server.
    StepsElsewhere,
}

/// A record that waits for the tracker.
enum Record {
    Step(StepMetrics),
    Completions(Vec<CompletionRecord>),
}

impl Footprint for Record {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Step(metrics) => metrics.num_bytes(),
            Self::Completions(completions) => completions[..].num_bytes(),
        }
    }
}

/// A tracker that is opened as soon as possible.
pub(super) struct Reopening {
    open: Open,
    takes: Takes,
    opened: Option<Box<dyn Tracker>>,
    waiting: BoundedQueue<Record>,
    /// Number of records until the next attempt.
    num_until_try: usize,
    /// Number of records between the last attempt and the next; it doubles after each failure.
    pause: usize,
}

impl Reopening {
    pub(super) fn new(takes: Takes, open: Open) -> Self {
        let waiting = BoundedQueue::new(MAX_WAITING, MAX_BYTES);
        Self { open, takes, opened: None, waiting, num_until_try: 1, pause: 1 }
    }

    fn take(&mut self, record: Record) -> Result<(), TrackingError> {
        if self.opened.is_some() {
            return self.write(record);
        }
        if self.waiting.is_full() {
            self.try_now_and_then();
        }
        if self.waiting.is_full() {
            return Err(TrackingError::Full { num_waiting: self.waiting.len() });
        }
        self.waiting.push_back(record);
        self.try_now_and_then();
        Ok(())
    }

    fn try_now_and_then(&mut self) {
        self.num_until_try = self.num_until_try.saturating_sub(1);
        if self.num_until_try == 0 && self.try_open().is_err() {
            self.pause = (2 * self.pause).min(MAX_PAUSE);
            self.num_until_try = self.pause;
        }
    }

    /// Opens the tracker, and passes the waiting records to it.
    fn try_open(&mut self) -> Result<(), TrackingError> {
        if self.opened.is_none() {
            self.opened = Some((self.open)()?);
        }
        while let Some(record) = self.waiting.pop_front() {
            self.write(record)?;
        }
        Ok(())
    }

    fn write(&mut self, record: Record) -> Result<(), TrackingError> {
        let Some(tracker) = &mut self.opened else { return Ok(()) };
        match record {
            Record::Step(metrics) => tracker.log_step(&metrics),
            Record::Completions(completions) => tracker.log_completions(&completions),
        }
    }
}

impl Tracker for Reopening {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        match self.takes {
            Takes::Completions => Ok(()),
            Takes::Steps | Takes::StepsElsewhere => self.take(Record::Step(metrics.clone())),
        }
    }

    fn takes_completions(&self) -> bool {
        self.takes == Takes::Completions
    }

    fn log_completions(&mut self, completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        self.take(Record::Completions(completions.to_vec()))
    }

    fn is_file(&self) -> bool {
        self.takes != Takes::StepsElsewhere
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.try_open()?;
        self.opened.as_mut().map_or(Ok(()), |tracker| tracker.sync())
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let num_steps = self.waiting.len();
        self.try_open().map_err(|source| TrackingError::Pending { num_steps, source: Box::new(source) })?;
        self.opened.as_mut().map_or(Ok(()), |tracker| tracker.end(end))
    }
}
