//! Queue of steps for a tracking server: sent in order, and kept while the server does not answer, up to a
//! limit.
//!
//! The module of each server has its requests and names.

use std::time::{Duration, Instant};

use crate::step_log::HistoryPosition;
use crate::waiting::{BoundedQueue, MAX_BYTES};
use crate::{History, RunDescription, RunEnd, StepMetrics, Tracker, TrackingError, error_chain};

/// Largest number of steps that wait for a server; their bytes are limited, too ([`MAX_BYTES`]).
const MAX_PENDING: usize = 10_000;
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A run on a tracking server.
pub trait TrackingServer: Send {
    /// Name of the tracker in warnings.
    const NAME: &'static str;

    /// Sends one or more steps from the front of `steps`, which is not empty. Returns the number of them that
    /// the server has now, at least one. `id` is the run's identity ([`RunDescription::id`]).
    ///
    /// # Errors
    /// When the server cannot be reached or rejects the request. The same steps are sent again later.
    fn send(&mut self, run: &RunDescription, id: &str, steps: &[StepMetrics])
    -> Result<usize, TrackingError>;

    /// Reports the end of the run.
    ///
    /// # Errors
    /// When the server cannot be reached or rejects the request.
    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError>;
}

/// A tracker that queues the steps that a tracking server does not have yet.
pub struct Backlog<S> {
    server: S,
    run: RunDescription,
    /// Identity of the run; `None` until its first step.
    id: Option<String>,
    /// Steps before those of this process, which are sent first.
    history: History,
    position: HistoryPosition,
    /// Steps of the history that are sent next.
    unsent: Vec<StepMetrics>,
    pending: BoundedQueue<StepMetrics>,
    next_try: Instant,
    pause: Duration,
}

impl<S: TrackingServer> Backlog<S> {
    /// Makes the queue of a run, with `history` to be sent; makes no request yet.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn new(server: S, run: RunDescription, history: &History) -> Result<Self, TrackingError> {
        Ok(Self {
            server,
            id: history.first()?.map(|first| run.id(&first)),
            run,
            history: history.clone(),
            position: HistoryPosition::default(),
            unsent: Vec::new(),
            pending: BoundedQueue::new(MAX_PENDING, MAX_BYTES),
            next_try: Instant::now(),
            pause: Duration::from_secs(1),
        })
    }

    /// Number of steps that the server does not have yet, as far as this process knows.
    pub fn num_pending(&self) -> usize {
        self.history.num_left(&self.position) + self.unsent.len() + self.pending.len()
    }

    /// Sends the steps of the history.
    fn flush_history(&mut self, id: &str) -> Result<(), TrackingError> {
        loop {
            if self.unsent.is_empty() {
                self.unsent = self.history.read(&mut self.position)?;
            }
            if self.unsent.is_empty() {
                return Ok(());
            }
            let num_sent = self.server.send(&self.run, id, &self.unsent)?;
            self.unsent.drain(..num_sent);
        }
    }

    /// Sends all waiting steps.
    ///
    /// # Errors
    /// When the server cannot be reached or rejects a request; steps that were not sent keep waiting.
    pub fn flush(&mut self) -> Result<(), TrackingError> {
        let Some(id) = self.id.clone() else { return Ok(()) };
        self.flush_history(&id)?;
        while !self.pending.is_empty() {
            let num_sent = self.server.send(&self.run, &id, self.pending.as_slice())?;
            self.pending.drop_front(num_sent);
        }
        Ok(())
    }

    /// Sends waiting steps, unless the last attempt failed too recently.
    fn try_now_and_then(&mut self) {
        if Instant::now() < self.next_try {
            return;
        }
        match self.flush() {
            Ok(()) => self.pause = Duration::from_secs(1),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(
                    tracker = S::NAME,
                    error,
                    "failed to send steps to the server; they are kept and sent again later"
                );
                self.next_try = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(MAX_PAUSE);
            }
        }
    }
}

impl<S: TrackingServer> Tracker for Backlog<S> {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        if self.id.is_none() {
            self.id = Some(self.run.id(metrics));
        }
        if self.pending.is_full() {
            self.try_now_and_then();
        }
        if self.pending.is_full() {
            return Err(TrackingError::Full { num_waiting: self.pending.len() });
        }
        self.pending.push_back(metrics.clone());
        self.try_now_and_then();
        Ok(())
    }

    fn is_file(&self) -> bool {
        false
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        if let Err(source) = self.flush() {
            return Err(TrackingError::Pending { num_steps: self.num_pending(), source: Box::new(source) });
        }
        self.server.end(end)
    }
}
