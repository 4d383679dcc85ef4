//! Holding a job back, and letting it go on. Its clock stands still in between.

use super::{Decision, JobState, Round, clock, deletion};

/// Stops all workers on request of a person.
pub(super) fn suspend(round: Round<'_>) -> Decision {
    pause(round, JobState::Suspended)
}

/// Stops all workers; each saves a checkpoint within its grace. `held` is the state once none is left.
pub(super) fn pause(mut round: Round<'_>, held: JobState) -> Decision {
    if round.status.active_since.is_some() {
        round.status.active_seconds = Some(round.active_seconds());
        round.status.active_since = None;
    }
    round.delete = deletion::deletions(&round, round.pods.all(), None);
    if round.pods.all().next().is_none() {
        return round.decide(held, None);
    }
    let state = deletion::stuck(&round).unwrap_or(JobState::Suspending);
    let requeue_after = deletion::next(&round);
    round.decide(state, requeue_after)
}

/// Begins the first attempt, or after a pause the next one.
pub(super) fn begin(mut round: Round<'_>) -> Decision {
    let now = clock::rfc3339(round.input.now);
    round.status.active_since = Some(now.clone());
    round.status.attempt_start_time = Some(now.clone());
    round.status.attempt_running_time = None;
    match round.status.attempt {
        // No pod of a first attempt can be confused with one of another: they need not wait for the status.
        None => {
            round.status.attempt = Some(1);
            round.status.start_time = Some(now);
            // An operator before this one made them, and died before it wrote that down: they may have ended
            // since.
            if round.pods.all().next().is_some() {
                return round.write_first(JobState::Starting);
            }
            super::run(round)
        }
        Some(attempt) => {
            round.status.attempt = Some(attempt + 1);
            round.write_first(JobState::Restarting)
        }
    }
}
