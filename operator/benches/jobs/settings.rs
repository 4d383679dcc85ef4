//! What is measured: everything, unless the environment requests less.

use std::time::Duration;

use crate::contestant::{Contestant, Gang};

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    contestants: Vec<String>,
    /// Sizes of the jobs that are posted one after another.
    pub(crate) gangs: Vec<Gang>,
    /// Repetitions of each; one more runs first as a warm-up.
    pub(crate) rounds: usize,
    /// Whether pods are taken away.
    pub(crate) has_failures: bool,
    /// Sizes of the crowds, smallest first.
    pub(crate) burst_jobs: Vec<usize>,
    /// Jobs that have a namespace each.
    pub(crate) namespaces: Vec<usize>,
    /// Pods of a plain client, to compare a crowd with.
    pub(crate) raw_pods: usize,
    /// How long nothing happens.
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

    /// The contestants.
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

/// Numbers, where 0 means none.
fn above_zero(name: &str, default: &str) -> Vec<usize> {
    numbers(name, default).into_iter().filter(|number| *number > 0).collect()
}

fn gangs(name: &str, default: &str) -> Vec<Gang> {
    let parse =
        |word: String| Gang::parse(&word).unwrap_or_else(|| panic!("{name}: {word} is not like 8 or 4x8"));
    words(name, default).into_iter().map(parse).collect()
}
