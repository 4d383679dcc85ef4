//! When a job has succeeded: the first worker alone writes results, and ends well only when all steps are
//! done.

use std::time::Duration;

use super::{Round, clock, deletion};
use crate::worker::{Worker, WorkerPhase};

/// How long the others have to end after the first worker has ended well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the work is done.
pub(super) enum Completion {
    /// It is.
    Complete,
    /// It is, but others are still on their way out, for so long at most.
    Completing(Duration),
    /// Not yet.
    Incomplete,
}

/// Looks whether the first worker has ended well. How the others end says nothing any more.
pub(super) fn completion(round: &Round<'_>) -> Completion {
    let first = round.pods.current.first().copied().flatten();
    let Some(first) = first.filter(|first| first.phase == WorkerPhase::Succeeded) else {
        return Completion::Incomplete;
    };
    let is_busy = |worker: &Worker| !worker.is_finished() && !deletion::is_lost(round, worker);
    let may_wait = !round.input.prepared.job.spec().run_policy.suspend;
    if !may_wait || !round.pods.present().any(is_busy) {
        return Completion::Complete;
    }
    let ended_at = first.exit.as_ref().and_then(|exit| exit.finished_at);
    // A node whose clock runs ahead changes nothing about the patience.
    let left = clock::until(ended_at.map(|at| at + PATIENCE), round.input.now);
    left.filter(|left| *left <= PATIENCE).map_or(Completion::Complete, Completion::Completing)
}
