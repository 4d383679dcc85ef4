//! Limits of a chaos run: how long faults wait for their targets, and how many may stay without effect.

use std::time::Duration;

use super::plan::ROUND;

/// Limits of a chaos run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Time that a fault of the plan waits for its target before it is deferred.
    pub(crate) patience: Duration,
    /// Time from the first fault after which no further round begins. A slow machine has fewer rounds then.
    pub(crate) rounds: Duration,
    /// Time for all deferred faults together, each of which is tried once more.
    pub(crate) second_tries: Duration,
    /// Number of faults that must have an effect, in percent of those that were tried.
    pub(crate) min_percent: usize,
    /// Number of faults that must be tried, in percent of the plan.
    pub(crate) min_tried_percent: usize,
}

impl Limits {
    /// Returns the limits of a run of this duration. A run of one round applies every fault, however long
    /// that takes. A longer run ends also on a busy machine, where some gangs do not train in time.
    pub(crate) fn of(duration: Duration) -> Self {
        if duration < 2 * ROUND {
            return Self {
                patience: Duration::from_secs(30),
                rounds: Duration::MAX,
                second_tries: Duration::MAX,
                min_percent: 100,
                min_tried_percent: 100,
            };
        }
        Self {
            patience: Duration::from_secs(120),
            rounds: duration,
            second_tries: Duration::from_secs(600),
            min_percent: 80,
            min_tried_percent: 50,
        }
    }

    /// Whether a run succeeds whose faults had an effect, or none, so often.
    pub(crate) fn are_met(&self, num_applied: usize, num_in_vain: usize, num_planned: usize) -> bool {
        let num_tried = num_applied + num_in_vain;
        100 * num_tried >= self.min_tried_percent * num_planned
            && 100 * num_applied >= self.min_percent * num_tried
    }
}
