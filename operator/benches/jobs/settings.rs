//! Settings of the benchmark: everything is measured, unless the environment requests less.

use std::time::Duration;

use crate::contestant::{Contestant, Gang};

/// Settings of the benchmark, from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    contestants: Vec<String>,
    /// Sizes of the jobs that are posted one after another.
    pub(crate) gangs: Vec<Gang>,
    /// Number of repetitions for each size; one more runs first as a warm-up.
    pub(crate) rounds: usize,
    /// Whether faults of pods are measured.
    pub(crate) has_failures: bool,
    /// Numbers of jobs in a burst, ascending.
    pub(crate) burst_jobs: Vec<usize>,
    /// Numbers of jobs that have one namespace each.
    pub(crate) namespaces: Vec<usize>,
    /// Number of pods that a plain client creates for comparison.
    pub(crate) raw_pods: usize,
    /// Duration of the idle measurement.
    pub(crate) idle: Duration,
}

impl Settings {
    /// Reads the `BENCH_` variables.
    pub(crate) fn from_environment() -> Self {
        let number = |name, default: &str| numbers(name, default)[0];
        Self {
            contestants: words("BENCH_CONTESTANTS", "operator job trainer-job jobset"),
            gangs: gangs("BENCH_PODS", "8 64 4x8"),
            rounds: number("BENCH_ROUNDS", "10"),
            has_failures: number("BENCH_FAILURES", "1") > 0,
            burst_jobs: above_zero("BENCH_BURSTS", "200 1000"),
            namespaces: above_zero("BENCH_NAMESPACES", "1000"),
            raw_pods: number("BENCH_RAW_PODS", "1600"),
            idle: Duration::from_secs(number("BENCH_IDLE_SECONDS", "60") as u64),
        }
    }

    /// Yields the contestants to measure.
    pub(crate) fn contestants(&self) -> impl Iterator<Item = Contestant> {
        Contestant::ALL.into_iter().filter(|one| self.contestants.iter().any(|name| name == one.flag()))
    }
}

fn words(name: &str, default: &str) -> Vec<String> {
    let set = std::env::var(name).unwrap_or_default();
    let text = if set.is_empty() { default } else { &set };
    text.split_whitespace().map(str::to_owned).collect()
}

fn numbers(name: &str, default: &str) -> Vec<usize> {
    let parse = |word: String| word.parse().unwrap_or_else(|_| panic!("{name}: {word} is no number"));
    words(name, default).into_iter().map(parse).collect()
}

/// Reads numbers, without zeros.
fn above_zero(name: &str, default: &str) -> Vec<usize> {
    numbers(name, default).into_iter().filter(|number| *number > 0).collect()
}

fn gangs(name: &str, default: &str) -> Vec<Gang> {
    let parse =
        |word: String| Gang::parse(&word).unwrap_or_else(|| panic!("{name}: {word} is not like 8 or 4x8"));
    words(name, default).into_iter().map(parse).collect()
}
