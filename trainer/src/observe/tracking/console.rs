//! Progress on the terminal: live bars on an interactive terminal, else one plain line per step.
//!
//! The training reports through [`Progress`]. A separate thread draws, so that a blocked terminal loses
//! updates and delays nothing.

mod bars;
mod lines;
mod summary;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressDrawTarget;

use super::{Stage, StepMetrics};

/// Capacity of the queue of updates for a slow terminal.
const QUEUE_LEN: usize = 256;
/// Maximum time that the end of a run waits for the last lines to be drawn. Only a blocked terminal takes
/// that long, or a machine that stalls.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// A phase of a step that takes long enough to be displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Sampling of completions; counted in samples.
    Rollout,
    /// Scoring of completions; counted in samples.
    Reward,
    /// Log-probs of actor and reference; counted in micro-batches.
    LogProbs,
    /// Update of the actor; counted in micro-batches.
    Update,
    /// Sampling of completions for held-out prompts; counted in samples.
    Evaluation,
    /// Writing of a checkpoint or an export; not counted.
    Saving,
}

impl Phase {
    fn label(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Reward => "reward",
            Self::LogProbs => "log-probs",
            Self::Update => "update",
            Self::Evaluation => "evaluation",
            Self::Saving => "saving",
        }
    }
}

/// A display of the training's progress. No call blocks.
pub trait Progress: Send + Sync {
    /// Begins a stage of `num_steps` steps, `num_done` of which an earlier attempt has finished.
    fn begin_stage(&self, stage: Stage, num_done: u64, num_steps: u64);
    /// Begins a phase of `total` units of work within the step; 0 if it is not counted.
    fn begin_phase(&self, phase: Phase, total: u64);
    /// Sets how many units the phase has done and how many tokens it has produced since it began.
    fn advance(&self, num_done: u64, num_tokens: u64);
    /// Ends a step, or the evaluation before the first.
    fn end_step(&self, metrics: &StepMetrics);
    /// Shows a message to the user; it contains no line break.
    fn message(&self, text: &str);
}

/// A [`Progress`] that displays nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin_stage(&self, _stage: Stage, _num_done: u64, _num_steps: u64) {}
    fn begin_phase(&self, _phase: Phase, _total: u64) {}
    fn advance(&self, _num_done: u64, _num_tokens: u64) {}
    fn end_step(&self, _metrics: &StepMetrics) {}
    fn message(&self, _text: &str) {}
}

/// A [`Progress`] that draws to the standard error stream.
pub struct Console {
    updates: Option<SyncSender<Update>>,
    /// Whether the screen shows the phases of a step.
    shows_phases: bool,
    /// Signals that the drawing thread has ended. Only `drop` receives; the lock makes the console `Sync`.
    drawn: Mutex<Receiver<()>>,
}

/// A message to the drawing thread.
#[derive(Clone, Debug)]
enum Update {
    Stage { stage: Stage, num_done: u64, num_steps: u64 },
    Phase { phase: Phase, total: u64 },
    Advance { num_done: u64, num_tokens: u64 },
    Step(StepMetrics),
    Message(String),
}

/// A way to draw updates: as bars or as lines.
trait Screen: Send {
    /// Whether the screen shows the phases of a step. Their updates, one for each sampled token, would fill
    /// the queue of a screen that does not.
    fn shows_phases(&self) -> bool;

    fn draw(&mut self, update: Update);
}

impl Console {
    /// Starts the drawing thread, with bars if the standard error stream is a terminal, else with lines.
    ///
    /// # Errors
    /// The drawing thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        match std::io::stderr().is_terminal() {
            true => Self::draw_on(Box::new(bars::Bars::on(ProgressDrawTarget::stderr()))),
            false => Self::draw_on(Box::new(lines::Lines::new(rlt_terminal::messages()))),
        }
    }

    fn draw_on(mut screen: Box<dyn Screen>) -> std::io::Result<Self> {
        let (updates, received) = sync_channel(QUEUE_LEN);
        let (ended, drawn) = sync_channel(1);
        let shows_phases = screen.shows_phases();
        std::thread::Builder::new().name("draw progress".into()).spawn(move || {
            received.into_iter().for_each(|update| screen.draw(update));
            drop(screen);
            let _ = ended.send(());
        })?;
        Ok(Self { updates: Some(updates), shows_phases, drawn: Mutex::new(drawn) })
    }

    fn send(&self, update: Update) {
        if let Some(updates) = &self.updates {
            // A full queue means that the terminal is blocked and would not show the update.
            let _ = updates.try_send(update);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.updates = None;
        let drawn = self.drawn.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = drawn.recv_timeout(FINISH_TIMEOUT);
    }
}

impl Progress for Console {
    fn begin_stage(&self, stage: Stage, num_done: u64, num_steps: u64) {
        self.send(Update::Stage { stage, num_done, num_steps });
    }

    fn begin_phase(&self, phase: Phase, total: u64) {
        if self.shows_phases {
            self.send(Update::Phase { phase, total });
        }
    }

    fn advance(&self, num_done: u64, num_tokens: u64) {
        if self.shows_phases {
            self.send(Update::Advance { num_done, num_tokens });
        }
    }

    fn end_step(&self, metrics: &StepMetrics) {
        self.send(Update::Step(metrics.clone()));
    }

    fn message(&self, text: &str) {
        self.send(Update::Message(text.to_owned()));
    }
}

/// Estimate of a stage's remaining time from the duration of its latest steps.
#[derive(Debug, Default)]
struct Pace {
    num_done: u64,
    num_steps: u64,
    seconds_per_step: Option<f64>,
    last: Option<Instant>,
}

impl Pace {
    fn begin(&mut self, num_done: u64, num_steps: u64, now: Instant) {
        *self = Self { num_done, num_steps, seconds_per_step: None, last: Some(now) };
    }

    fn end_step(&mut self, step: u64, now: Instant) {
        self.num_done = step;
        let seconds = self.last.replace(now).map(|last| (now - last).as_secs_f64());
        // Step 0 is the evaluation before the first step; its duration says nothing about the pace.
        if let Some(seconds) = seconds.filter(|_| step > 0) {
            // Durations of steps differ (some evaluate, some save), so the estimate is a moving average.
            let estimate = self.seconds_per_step.map_or(seconds, |estimate| 0.8 * estimate + 0.2 * seconds);
            self.seconds_per_step = Some(estimate);
        }
    }

    /// Returns the estimated time left in the stage; `None` before the first step of this run ends.
    fn remaining(&self) -> Option<Duration> {
        let num_left = self.num_steps.saturating_sub(self.num_done) as f64;
        Duration::try_from_secs_f64(num_left * self.seconds_per_step?).ok()
    }
}

#[cfg(test)]
mod tests;
