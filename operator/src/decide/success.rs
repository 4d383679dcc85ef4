//! When a job has succeeded: the first worker alone writes results, and ends well only when all steps are
//! done.

use std::time::Duration;

use super::{Round, clock, departure};
use crate::worker::{Worker, WorkerPhase};

/// How long the others have to end after the first worker has ended well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the work is done.
pub(super) enum Verdict {
    /// It is.
    Yes,
    /// It is, but others are still on their way out, for so long at most.
    Soon(Duration),
    /// Not yet.
    No,
}

/// Looks whether the first worker has ended well. How the others end says nothing any more.
pub(super) fn judge(round: &Round<'_>) -> Verdict {
    let first = round.census.current.first().copied().flatten();
    let Some(first) = first.filter(|first| first.phase == WorkerPhase::Succeeded) else { return Verdict::No };
    let is_busy = |worker: &Worker| !worker.is_finished() && !departure::is_lost(round, worker);
    let may_wait = !round.facts.prepared.job.spec().run_policy.suspend;
    if !may_wait || !round.census.present().any(is_busy) {
        return Verdict::Yes;
    }
    let ended_at = first.exit.as_ref().and_then(|exit| exit.finished_at);
    // A node whose clock runs ahead changes nothing about the patience.
    let left = clock::until(ended_at.map(|at| at + PATIENCE), round.facts.now);
    left.filter(|left| *left <= PATIENCE).map_or(Verdict::Yes, Verdict::Soon)
}
