//! Suspending and resuming a job. Its active deadline does not run in between.

use super::{Decision, JobState, Round, clock, deletion, evacuation};

/// Deletes all pods because of `spec.runPolicy.suspend`.
pub(super) fn suspend(round: Round<'_>) -> Decision {
    pause(round, JobState::Suspended)
}

/// Deletes all pods with their grace period, in which they save a checkpoint. `held` is the state once no pod
/// is left.
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

/// Begins the first attempt, or the next one after a suspension.
pub(super) fn begin(mut round: Round<'_>) -> Decision {
    let now = clock::rfc3339(round.input.now);
    round.status.active_since = Some(now.clone());
    round.status.attempt_start_time = Some(now.clone());
    round.status.attempt_running_time = None;
    evacuation::end(&mut round);
    match round.status.attempt {
        // Pods of the first attempt need not wait for the status: there are none of an earlier one.
        None => {
            round.status.attempt = Some(1);
            round.status.start_time = Some(now);
            // An earlier operator created them and died before it wrote the status: they may have ended
            // since.
            if round.pods.all().next().is_some() {
                return round.write_first(JobState::Starting);
            }
            super::run(round)
        }
        Some(attempt) => {
            round.status.attempt = Some(attempt + 1);
            round.status.restarts_in_place.clear();
            round.write_first(JobState::Restarting)
        }
    }
}
