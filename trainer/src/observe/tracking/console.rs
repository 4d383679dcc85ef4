//! Progress on the terminal: live bars if it is interactive, else one plain line a step.
//!
//! The training reports through [`Progress`]. Drawing is done on a separate thread: a blocked terminal loses
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

/// Updates that may wait for a slow terminal.
const QUEUE_LEN: usize = 256;
/// How long the end of a run waits for the last lines to appear.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// A part of one step that takes long enough to be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Completions are sampled; counted in samples.
    Rollout,
    /// Completions are judged; counted in samples.
    Reward,
    /// Log-probs of actor and reference are computed; counted in micro-batches.
    LogProbs,
    /// The actor learns; counted in micro-batches.
    Update,
    /// Held-out prompts are answered; counted in samples.
    Evaluation,
    /// A checkpoint or an export is written; not counted.
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

/// A receiver of the training's progress. No call blocks.
pub trait Progress: Send + Sync {
    /// A stage of `num_steps` steps begins; `num_done` of them were finished by an earlier run.
    fn begin_stage(&self, stage: Stage, num_done: u64, num_steps: u64);
    /// A phase of `total` units of work begins within the step; 0 if it is not counted.
    fn begin_phase(&self, phase: Phase, total: u64);
    /// The phase has done this many units and produced this many tokens since it began.
    fn advance(&self, num_done: u64, num_tokens: u64);
    /// A step, or the evaluation before the first, is finished.
    fn end_step(&self, metrics: &StepMetrics);
    /// A message to the user, without a line break.
    fn message(&self, text: &str);
}

/// No display.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin_stage(&self, _stage: Stage, _num_done: u64, _num_steps: u64) {}
    fn begin_phase(&self, _phase: Phase, _total: u64) {}
    fn advance(&self, _num_done: u64, _num_tokens: u64) {}
    fn end_step(&self, _metrics: &StepMetrics) {}
    fn message(&self, _text: &str) {}
}

/// Progress on the standard error stream.
pub struct Console {
    updates: Option<SyncSender<Update>>,
    /// Locked only to make the console shareable; only `drop` receives.
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

/// Draws updates in one way or another.
trait Screen: Send {
    fn draw(&mut self, update: Update);
}

impl Console {
    /// Bars where the standard error stream is a terminal, else lines.
    ///
    /// # Errors
    /// The drawing thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let stderr = std::io::stderr();
        match stderr.is_terminal() {
            true => Self::draw_on(Box::new(bars::Bars::on(ProgressDrawTarget::stderr()))),
            false => Self::draw_on(Box::new(lines::Lines::new(stderr))),
        }
    }

    fn draw_on(mut screen: Box<dyn Screen>) -> std::io::Result<Self> {
        let (updates, received) = sync_channel(QUEUE_LEN);
        let (ended, drawn) = sync_channel(1);
        std::thread::Builder::new().name("draw progress".into()).spawn(move || {
            received.into_iter().for_each(|update| screen.draw(update));
            drop(screen);
            let _ = ended.send(());
        })?;
        Ok(Self { updates: Some(updates), drawn: Mutex::new(drawn) })
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
        self.send(Update::Phase { phase, total });
    }

    fn advance(&self, num_done: u64, num_tokens: u64) {
        self.send(Update::Advance { num_done, num_tokens });
    }

    fn end_step(&self, metrics: &StepMetrics) {
        self.send(Update::Step(metrics.clone()));
    }

    fn message(&self, text: &str) {
        self.send(Update::Message(text.to_owned()));
    }
}

/// The time a stage still needs, from the pace of its latest steps.
#[derive(Debug, Default)]
struct Pace {
    num_done: u64,
    num_steps: u64,
    seconds_per_step: Option<f64>,
    last: Option<Instant>,
}

impl Pace {
    fn begin(&mut self, num_done: u64, num_steps: u64) {
        *self = Self { num_done, num_steps, seconds_per_step: None, last: Some(Instant::now()) };
    }

    fn end_step(&mut self, step: u64) {
        self.num_done = step;
        let now = Instant::now();
        let seconds = self.last.replace(now).map(|last| (now - last).as_secs_f64());
        // Step 0 is the evaluation before the first step and says nothing of the pace.
        if let Some(seconds) = seconds.filter(|_| step > 0) {
            // Steps differ (some evaluate, some save), so the estimate follows them slowly.
            let estimate = self.seconds_per_step.map_or(seconds, |estimate| 0.8 * estimate + 0.2 * seconds);
            self.seconds_per_step = Some(estimate);
        }
    }

    /// None before the first step of this run.
    fn remaining(&self) -> Option<Duration> {
        let num_left = self.num_steps.saturating_sub(self.num_done) as f64;
        Duration::try_from_secs_f64(num_left * self.seconds_per_step?).ok()
    }
}

#[cfg(test)]
mod tests;
