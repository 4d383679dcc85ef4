//! Progress as one line per step, for logs that are read later or through `kubectl logs`.

use std::io::Write;
use std::time::{Duration, Instant};

use super::{Pace, Screen, Update, summary};
use crate::observe::tracking::Stage;

/// Minimum time between two lines of the cold start, whose steps are short.
const MIN_COLD_START_INTERVAL: Duration = Duration::from_secs(2);

/// A screen that writes plain lines to a stream.
pub(super) struct Lines<W> {
    stream: W,
    pace: Pace,
    last_cold_start: Option<Instant>,
    clock: fn() -> Instant,
}

impl<W: Write> Lines<W> {
    pub(super) fn new(stream: W) -> Self {
        Self { stream, pace: Pace::default(), last_cold_start: None, clock: Instant::now }
    }

    /// Replaces the machine's clock by `clock`, which is read once for each update.
    #[cfg(test)]
    pub(super) fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock, ..self }
    }

    fn line(&mut self, text: &str) {
        // A closed stream is no reason to stop.
        let _ = writeln!(self.stream, "{text}").and_then(|()| self.stream.flush());
    }

    fn is_due(&mut self, stage: Stage, step: u64, now: Instant) -> bool {
        let waits = self.last_cold_start.is_some_and(|last| now - last < MIN_COLD_START_INTERVAL);
        if stage == Stage::Training || step == self.pace.num_steps || !waits {
            self.last_cold_start = Some(now);
            return true;
        }
        false
    }
}

impl<W: Write + Send> Screen for Lines<W> {
    fn shows_phases(&self) -> bool {
        false
    }

    fn draw(&mut self, update: Update) {
        let now = (self.clock)();
        match update {
            Update::Stage { num_done, num_steps, .. } => self.pace.begin(num_done, num_steps, now),
            Update::Phase { .. } | Update::Advance { .. } => {}
            Update::Step(metrics) => {
                self.pace.end_step(metrics.step, now);
                if !self.is_due(metrics.stage, metrics.step, now) {
                    return;
                }
                let name = match metrics.stage {
                    Stage::ColdStart => "cold start",
                    Stage::Training => "step",
                };
                let mut text = format!("{name} {}/{}: ", metrics.step, self.pace.num_steps);
                text.push_str(&summary::of_step(&metrics));
                if let Some(remaining) = self.pace.remaining().filter(|remaining| !remaining.is_zero()) {
                    text.push_str(&format!(", {} left", summary::duration(remaining)));
                }
                self.line(&text);
            }
            Update::Message(text) => self.line(&text),
        }
    }
}
