//! Steps on their way to a tracking server: sent in order, kept while it does not answer, up to a limit.
//!
//! What a server is asked, and how it names things, is in its own module.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{RunDescription, RunEnd, StepMetrics, Tracker, TrackingError, error_chain};

/// Steps that wait for a server, at most.
const MAX_PENDING: usize = 10_000;
/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A run on a tracking server.
pub trait TrackingServer: Send {
    /// The tracker's name in warnings.
    const NAME: &'static str;

    /// Sends the first of `steps`, which are not empty. Returns how many of them the server has now, at least
    /// one. `id` is the run's identity ([`RunDescription::id`]).
    ///
    /// # Errors
    /// The server cannot be reached or refuses. The same steps are sent again later.
    fn send(&mut self, run: &RunDescription, id: &str, steps: &[StepMetrics])
    -> Result<usize, TrackingError>;

    /// Takes note that the run has ended.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError>;
}

/// A run on a tracking server, and the steps that the server does not have yet.
pub struct Backlog<S> {
    server: S,
    run: RunDescription,
    /// The run's identity, once its first step is known.
    id: Option<String>,
    pending: VecDeque<StepMetrics>,
    next_try: Instant,
    pause: Duration,
}

impl<S: TrackingServer> Backlog<S> {
    /// The run, with `history` waiting to be sent; nothing is asked of the server yet.
    pub fn new(server: S, run: RunDescription, history: &[StepMetrics]) -> Self {
        Self {
            server,
            id: history.first().map(|first| run.id(first)),
            run,
            pending: history.iter().cloned().collect(),
            next_try: Instant::now(),
            pause: Duration::from_secs(1),
        }
    }

    /// Steps that the server does not have yet, as far as this process knows.
    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Sends everything that waits.
    ///
    /// # Errors
    /// The server cannot be reached or refuses; what was not sent waits.
    pub fn flush(&mut self) -> Result<(), TrackingError> {
        let Some(id) = &self.id else { return Ok(()) };
        while !self.pending.is_empty() {
            let num_sent = self.server.send(&self.run, id, self.pending.make_contiguous())?;
            self.pending.drain(..num_sent);
        }
        Ok(())
    }

    /// Sends what waits, unless a failure is too recent.
    fn try_now_and_then(&mut self) {
        if Instant::now() < self.next_try {
            return;
        }
        match self.flush() {
            Ok(()) => self.pause = Duration::from_secs(1),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(tracker = S::NAME, error, "steps wait for the server");
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
        if self.pending.len() >= MAX_PENDING {
            self.try_now_and_then();
        }
        if self.pending.len() >= MAX_PENDING {
            return Err(TrackingError::Full { limit: MAX_PENDING });
        }
        self.pending.push_back(metrics.clone());
        self.try_now_and_then();
        Ok(())
    }

    fn is_file(&self) -> bool {
        false
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let num_steps = self.pending.len();
        self.flush().map_err(|source| TrackingError::Pending { num_steps, source: Box::new(source) })?;
        self.server.end(end)
    }
}
