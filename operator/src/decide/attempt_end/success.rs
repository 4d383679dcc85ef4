//! Detection of a job's completion: only the first pod writes results, and it exits with 0 only after all
//! steps.

use std::time::Duration;

use rlt_objects::worker::{Worker, WorkerPhase};

use super::super::{Reconcile, clock, deletion};

/// Longest time that the other pods have to exit after the first one has exited with 0.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a job has finished all steps.
pub(in crate::decide) enum Completion {
    /// All steps are done, and no other pod runs.
    Complete,
    /// All steps are done, but other pods still run, for at most this time.
    Completing(Duration),
    /// Some steps are not done.
    Incomplete,
}

/// Returns whether a job is complete, by the exit of its first pod. If that succeeded, the exits of other
/// pods do not matter.
pub(in crate::decide) fn completion(reconcile: &Reconcile<'_>) -> Completion {
    let Some(first) = reconcile.pods.first().filter(|first| first.phase == WorkerPhase::Succeeded) else {
        return Completion::Incomplete;
    };
    let is_busy = |worker: &Worker| !worker.is_finished() && !deletion::is_lost(reconcile, worker);
    let may_wait = !reconcile.input.prepared.job.spec().run_policy.suspend;
    if !may_wait || !reconcile.pods.present().any(is_busy) {
        return Completion::Complete;
    }
    let ended_at = first.exit.as_ref().and_then(|exit| exit.finished_at);
    // A node's clock may be ahead of the operator's, so the wait is bounded by `PATIENCE`.
    let left = clock::until(ended_at.map(|at| at + PATIENCE), reconcile.input.now);
    left.filter(|left| *left <= PATIENCE).map_or(Completion::Complete, Completion::Completing)
}
