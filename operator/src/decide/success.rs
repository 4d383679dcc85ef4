//! When a job is complete: only the first pod writes results, and it exits with 0 only after all steps.

use std::time::Duration;

use rlt_objects::worker::{Worker, WorkerPhase};

use super::{Reconcile, clock, deletion};

/// How long the other pods have to exit after the first has exited with 0.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether all steps are done.
pub(super) enum Completion {
    /// They are.
    Complete,
    /// They are, but other pods still run, for this long at most.
    Completing(Duration),
    /// Not yet.
    Incomplete,
}

/// Judges by the exit of the first pod; how the others exit does not matter then.
pub(super) fn completion(reconcile: &Reconcile<'_>) -> Completion {
    let Some(first) = reconcile.pods.first().filter(|first| first.phase == WorkerPhase::Succeeded) else {
        return Completion::Incomplete;
    };
    let is_busy = |worker: &Worker| !worker.is_finished() && !deletion::is_lost(reconcile, worker);
    let may_wait = !reconcile.input.prepared.job.spec().run_policy.suspend;
    if !may_wait || !reconcile.pods.present().any(is_busy) {
        return Completion::Complete;
    }
    let ended_at = first.exit.as_ref().and_then(|exit| exit.finished_at);
    // The clock of a node may be ahead of ours: never wait longer than `PATIENCE`.
    let left = clock::until(ended_at.map(|at| at + PATIENCE), reconcile.input.now);
    left.filter(|left| *left <= PATIENCE).map_or(Completion::Complete, Completion::Completing)
}
