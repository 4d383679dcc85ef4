//! Finished jobs. The end is final; afterwards only pods are cleaned up, and the job itself after its TTL.

use std::time::Duration;

use rlt_api::spec::{CleanPodPolicy, TtlPolicy};

use super::{Decision, JobState, Round, clock, deletion};
use crate::worker::Worker;

/// All steps are done.
pub(super) fn complete(mut round: Round<'_>) -> Decision {
    end(&mut round);
    round.write_first(JobState::Complete)
}

/// The job has failed for good; the cause is in the status already.
pub(super) fn fail(mut round: Round<'_>, state: JobState) -> Decision {
    end(&mut round);
    round.write_first(state)
}

fn end(round: &mut Round<'_>) {
    round.status.completion_time = Some(clock::rfc3339(round.input.now));
    if round.status.active_since.take().is_some() || round.status.active_seconds.is_some() {
        let since = round.input.status.active_since.as_deref();
        let since = round.time(since).unwrap_or(round.input.now);
        let before = round.status.active_seconds.unwrap_or(0);
        round.status.active_seconds = Some(before + clock::seconds_between(since, round.input.now));
    }
}

/// Cleans up after a job that has ended.
pub(super) fn settle(mut round: Round<'_>) -> Decision {
    let policy = round.input.prepared.job.spec().run_policy.clone();
    let state = JobState::of_finished(&round.status);
    let ended = round.time(round.status.completion_time.as_deref()).unwrap_or(round.input.now);
    let age = clock::seconds_between(ended, round.input.now);
    let left = policy.ttl_seconds_after_finished.map(|ttl| ttl.saturating_sub(age));
    let is_expired = left == Some(0);
    let keeps_job = round.input.is_tracked && policy.ttl_policy == TtlPolicy::KeepTracked;
    let is_unwanted = |worker: &&Worker| match policy.clean_pod_policy {
        _ if worker.is_deleting => true,
        _ if is_expired => true,
        CleanPodPolicy::All => true,
        CleanPodPolicy::Running => !worker.is_finished() || worker.has_live_sidecars,
        CleanPodPolicy::None => false,
    };
    round.delete = deletion::deletions(&round, round.pods.all().filter(is_unwanted), None);
    let requeue_after = left.filter(|left| *left > 0).map(Duration::from_secs);
    let mut decision = round.decide(state, requeue_after);
    decision.delete_job = is_expired && !keeps_job;
    if decision.delete_job {
        decision.delete.clear();
    }
    decision
}
