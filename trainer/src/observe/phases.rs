//! Times of a step's phases under verl's names, and the step's memory.

pub(crate) mod memory;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use rlt_core::metrics::Metrics;

thread_local! {
    static UNDER_WAY: Cell<&'static str> = const { Cell::new(SETUP) };
}

/// Name of the phase before the first phase of a step.
const SETUP: &str = "setup";

/// Clock of the phases of one step; a phase may be repeated.
#[derive(Debug)]
pub struct PhaseClock {
    started: Instant,
    seconds: BTreeMap<&'static str, f64>,
}

impl PhaseClock {
    /// Starts the clock of a step.
    pub fn start() -> Self {
        Self { started: Instant::now(), seconds: BTreeMap::new() }
    }

    /// Runs `work` as [`run`] does, and adds its duration to `phase`.
    pub fn measure<T>(&mut self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        let (result, seconds) = run(phase, work);
        self.add(phase, seconds);
        result
    }

    /// Adds `seconds` to `phase`.
    pub fn add(&mut self, phase: &'static str, seconds: f64) {
        *self.seconds.entry(phase).or_default() += seconds;
    }

    /// Seconds that `phase` has taken so far.
    pub fn seconds(&self, phase: &str) -> f64 {
        self.seconds.get(phase).copied().unwrap_or(0.0)
    }

    /// Seconds since the step began.
    pub fn total_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns `timing_s/<phase>` for each phase and `timing_s/step` for the step, in seconds.
    pub fn metrics(&self) -> Metrics {
        let mut metrics: Metrics =
            self.seconds.iter().map(|(phase, seconds)| (format!("timing_s/{phase}"), *seconds)).collect();
        metrics.insert("timing_s/step".into(), self.total_seconds());
        metrics
    }
}

/// Sets the phase to which this thread's work is attributed from now on.
pub(crate) fn enter(phase: &'static str) {
    UNDER_WAY.set(phase);
}

/// Returns the phase to which this thread's work is attributed.
pub(crate) fn under_way() -> &'static str {
    UNDER_WAY.get()
}

/// Runs `work` as `phase`, to which memory peaks and errors are attributed, within a span of the trace. Also
/// returns the duration in seconds.
pub fn run<T>(phase: &'static str, work: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    enter(phase);
    let result = tracing::info_span!(target: rlt_traces::TARGET, "phase", otel.name = phase)
        .in_scope(|| memory::during(phase, work));
    // If the kernel refuses, the estimate of file-backed pages in the peak is coarser.
    let _ = rlt_torch::settle_peak_memory();
    (result, started.elapsed().as_secs_f64())
}

/// Returns the metrics `perf/..` of a step that trained on `num_tokens` tokens: its cost in time and memory.
pub fn cost_metrics(num_tokens: usize, clock: &PhaseClock) -> Metrics {
    let seconds = clock.total_seconds();
    let mut metrics = clock.metrics();
    metrics.insert("perf/total_num_tokens".into(), num_tokens as f64);
    metrics.insert("perf/time_per_step".into(), seconds);
    metrics.insert("perf/throughput".into(), num_tokens as f64 / seconds);
    if let Ok(bytes) = rlt_torch::peak_own_bytes() {
        metrics.insert("perf/cpu_memory_used_gb".into(), gib(bytes));
    }
    metrics.extend(memory::metrics());
    metrics
}

pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_phase_is_summed_and_the_step_includes_all_phases() {
        let mut clock = PhaseClock::start();
        let pause = || std::thread::sleep(std::time::Duration::from_millis(2));
        clock.measure("gen", pause);
        clock.measure("gen", pause);
        assert_eq!(clock.measure("adv", || 7), 7);
        let metrics = clock.metrics();
        assert!(metrics["timing_s/gen"] >= 0.004);
        assert!(metrics["timing_s/step"] >= metrics["timing_s/gen"] + metrics["timing_s/adv"]);
    }
}
