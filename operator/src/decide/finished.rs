//! The end of a job. It is final; afterwards only pods are deleted, and the job itself after its TTL.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::spec::{CleanPodPolicy, RunPolicySpec, TtlPolicy};
use rlt_objects::worker::Worker;

use super::{Decision, JobState, Reconcile, clock, deletion};

/// Ends the job as complete.
pub(super) fn complete(mut reconcile: Reconcile<'_>) -> Decision {
    end(&mut reconcile);
    reconcile.write_first(JobState::Complete)
}

/// Ends the job as failed; the status already has the cause.
pub(super) fn fail(mut reconcile: Reconcile<'_>, state: JobState) -> Decision {
    end(&mut reconcile);
    reconcile.write_first(state)
}

fn end(reconcile: &mut Reconcile<'_>) {
    reconcile.status.completion_time = Some(clock::rfc3339(reconcile.input.now));
    if reconcile.status.active_since.take().is_some() || reconcile.status.active_seconds.is_some() {
        let since = reconcile.input.status.active_since.as_deref();
        let since = reconcile.time(since).unwrap_or(reconcile.input.now);
        let before = reconcile.status.active_seconds.unwrap_or(0);
        reconcile.status.active_seconds = Some(before + clock::seconds_between(since, reconcile.input.now));
    }
}

/// Returns the remaining time to live, in seconds, of a job that ended at `ended`; `None` if it has none.
pub(super) fn seconds_left(policy: &RunPolicySpec, ended: Timestamp, now: Timestamp) -> Option<u64> {
    let age = clock::seconds_between(ended, now);
    policy.ttl_seconds_after_finished.map(|ttl| ttl.saturating_sub(age))
}

/// Whether a job is kept after its time to live, because a GitOps controller would apply it again.
pub(super) fn keeps_tracked(policy: &RunPolicySpec, is_tracked: bool) -> bool {
    is_tracked && policy.ttl_policy == TtlPolicy::KeepTracked
}

/// Cleans up after a job that has ended. MultiKueue deletes a copy itself.
pub(super) fn settle(mut reconcile: Reconcile<'_>) -> Decision {
    let policy = reconcile.input.prepared.job.spec().run_policy.clone();
    let state = JobState::of_finished(&reconcile.status);
    let ended = reconcile.time(reconcile.status.completion_time.as_deref()).unwrap_or(reconcile.input.now);
    let left = seconds_left(&policy, ended, reconcile.input.now);
    let is_expired = left == Some(0);
    let keeps_job = reconcile.input.is_copy || keeps_tracked(&policy, reconcile.input.is_tracked);
    let is_unwanted = |worker: &&Worker| match policy.clean_pod_policy {
        _ if worker.is_deleting => true,
        _ if is_expired => true,
        CleanPodPolicy::All => true,
        _ if worker.is_spare() => true,
        // A pod whose launcher waits for another attempt exits by itself, and keeps its logs.
        CleanPodPolicy::Running => !worker.has_no_process() || worker.has_live_sidecars,
        CleanPodPolicy::None => false,
    };
    reconcile.delete = deletion::deletions(&reconcile, reconcile.pods.all().filter(is_unwanted), None);
    let requeue_after = left.filter(|left| *left > 0).map(Duration::from_secs);
    let mut decision = reconcile.decide(state, requeue_after);
    decision.delete_job = is_expired && !keeps_job;
    if decision.delete_job {
        decision.delete.clear();
    }
    decision
}
