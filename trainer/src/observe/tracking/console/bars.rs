//! Live progress bars: one for the stage, one for the phase within the step.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Pace, Phase, Screen, Update, summary};
use crate::observe::tracking::{Stage, StepMetrics};

const STAGE_TEMPLATE: &str = "{prefix:>10} {bar:28.cyan/dim} {pos}/{len}  {msg}";
const PHASE_TEMPLATE: &str = "{prefix:>10.dim} {bar:28.blue/dim} {pos}/{len}  {msg:.dim}";
const UNCOUNTED_TEMPLATE: &str = "{prefix:>10.dim} {spinner:.blue} {msg:.dim}";
/// Characters of a thin bar: filled, tip, and empty.
const BAR_CHARACTERS: &str = "━╸─";

/// Progress bars at the bottom of a terminal; messages scroll by above them.
pub(super) struct Bars {
    bars: MultiProgress,
    stage: ProgressBar,
    phase: ProgressBar,
    phase_started: Instant,
    pace: Pace,
    summary: String,
}

impl Bars {
    /// Creates bars on `target`, usually the standard error stream.
    pub(super) fn on(target: ProgressDrawTarget) -> Self {
        Self {
            bars: MultiProgress::with_draw_target(target),
            stage: ProgressBar::hidden(),
            phase: ProgressBar::hidden(),
            phase_started: Instant::now(),
            pace: Pace::default(),
            summary: String::new(),
        }
    }

    fn begin_stage(&mut self, stage: Stage, num_done: u64, num_steps: u64) {
        self.end_stage();
        self.pace.begin(num_done, num_steps, Instant::now());
        self.stage = self.bars.add(ProgressBar::new(num_steps));
        self.stage.set_style(style(STAGE_TEMPLATE));
        self.stage.set_prefix(match stage {
            Stage::ColdStart => "cold start",
            Stage::Training => "training",
        });
        self.stage.set_position(num_done);
        self.stage.enable_steady_tick(Duration::from_millis(500));
    }

    fn begin_phase(&mut self, phase: Phase, total: u64) {
        self.phase.finish_and_clear();
        self.phase = self.bars.add(ProgressBar::new(total));
        self.phase.set_style(style(if total == 0 { UNCOUNTED_TEMPLATE } else { PHASE_TEMPLATE }));
        self.phase.set_prefix(phase.label());
        self.phase.enable_steady_tick(Duration::from_millis(120));
        self.phase_started = Instant::now();
    }

    fn advance(&self, num_done: u64, num_tokens: u64) {
        self.phase.set_position(num_done);
        let seconds = self.phase_started.elapsed().as_secs_f64();
        if num_tokens > 0 && seconds > 0.0 {
            self.phase.set_message(summary::tokens_per_second(num_tokens as f64 / seconds));
        }
    }

    fn end_step(&mut self, metrics: &StepMetrics) {
        self.phase.finish_and_clear();
        self.pace.end_step(metrics.step, Instant::now());
        self.stage.set_position(metrics.step);
        self.summary = summary::of_step(metrics);
        let remaining = self.pace.remaining().filter(|remaining| !remaining.is_zero());
        let remaining = remaining.map(|remaining| format!(", {} left", summary::duration(remaining)));
        self.stage.set_message(format!("{}{}", self.summary, remaining.unwrap_or_default()));
    }

    /// Ends the stage's bar and leaves its last state as a line.
    fn end_stage(&mut self) {
        self.phase.finish_and_clear();
        if !self.stage.is_hidden() {
            self.stage.finish_with_message(std::mem::take(&mut self.summary));
        }
    }
}

impl Screen for Bars {
    fn shows_phases(&self) -> bool {
        true
    }

    fn draw(&mut self, update: Update) {
        match update {
            Update::Stage { stage, num_done, num_steps } => self.begin_stage(stage, num_done, num_steps),
            Update::Phase { phase, total } => self.begin_phase(phase, total),
            Update::Advance { num_done, num_tokens } => self.advance(num_done, num_tokens),
            Update::Step(metrics) => self.end_step(&metrics),
            // Errors of the terminal are ignored, because the training does not depend on its display.
            Update::Message(text) => drop(self.bars.println(rlt_terminal::escaped(&text))),
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.end_stage();
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file; a test draws each of them.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars(BAR_CHARACTERS)
}
