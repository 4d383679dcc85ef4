//! Deadlines of an active job: of its start, of a step, of the whole job; and the requeue times that follow
//! from them.

use std::time::Duration;

use rlt_api::status::{Condition, ConditionType, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason};
use rlt_objects::worker::{Waiting, Worker};

use super::failure::{Failure, in_words};
use super::{JobState, Reconcile, clock, deletion, queue};

/// Seconds after which a delayed start is reported: a cluster autoscaler needs time to add nodes.
const HELD_UP_AFTER_SECONDS: u64 = 10;

/// Reasons of a status that was written after a decision could not be applied.
const APPLY_FAILURES: [Reason; 4] =
    [Reason::WorkersRefused, Reason::ObjectRefused, Reason::NameConflict, Reason::ApplyFailed];

/// Returns the time until the next deadline or check.
pub(super) fn next(reconcile: &Reconcile<'_>) -> Option<Duration> {
    let policy = &reconcile.input.prepared.job.spec().run_policy;
    let active = policy.active_deadline_seconds.map(|limit| limit.saturating_sub(reconcile.active_seconds()));
    let held_up = seconds_starting(reconcile).map(|seconds| HELD_UP_AFTER_SECONDS.saturating_sub(seconds));
    let held_up = held_up.filter(|left| *left > 0 && held_up_worker(reconcile).is_some());
    let seconds = [active, startup_seconds_left(reconcile), stall_check_seconds(reconcile), held_up];
    let next = seconds.into_iter().flatten().min().map(|seconds| Duration::from_secs(seconds.max(1)));
    [next, deletion::next(reconcile)].into_iter().flatten().min()
}

/// Returns the failure for a deadline that has passed.
pub(super) fn overdue(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let policy = &reconcile.input.prepared.job.spec().run_policy;
    if startup_seconds_left(reconcile) == Some(0) {
        let seconds = policy.startup_deadline_seconds.unwrap_or_default();
        return Some(late_start(reconcile, seconds));
    }
    if stall_seconds_left(reconcile) == Some(0) {
        let seconds = policy.stall_deadline_seconds.unwrap_or_default();
        let message = format!("no step was finished for {seconds} s");
        return Some(Failure::of_job(FailureCause::NoProgress, message));
    }
    None
}

/// Returns the state of a start that takes longer than usual, with the reason.
pub(super) fn start_delay(reconcile: &Reconcile<'_>) -> Option<JobState> {
    seconds_starting(reconcile).filter(|seconds| *seconds >= HELD_UP_AFTER_SECONDS)?;
    let (worker, cause, why) = held_up_worker(reconcile)?;
    Some(JobState::StartDelayed(cause, format!("{}: {why}", worker.name)))
}

/// Remaining restart delay of the attempt.
pub(super) fn wait_to_start(reconcile: &Reconcile<'_>) -> Option<Duration> {
    let starts_at = reconcile.time(reconcile.status.attempt_start_time.as_deref());
    let wait = clock::until(starts_at, reconcile.input.now)?;
    // A longer wait was computed by an earlier operator whose clock was ahead.
    (wait <= restart_delay(&reconcile.status)).then_some(wait)
}

/// Delay of an attempt that follows short ones.
pub(super) fn restart_delay(status: &RLTrainingJobStatus) -> Duration {
    rlt_api::failure::restart_delay(status.short_attempts.unwrap_or(0))
}

/// Returns the seconds since the attempt began; `None` once all of its pods run. The pods are looked at
/// because they may have started while no operator ran, and the status says so only later in the reconcile.
fn seconds_starting(reconcile: &Reconcile<'_>) -> Option<u64> {
    let runs = || reconcile.pods.state(&reconcile.status) == JobState::Running;
    let is_starting = reconcile.status.attempt_running_time.is_none() && !runs();
    let since = reconcile.time(reconcile.status.attempt_start_time.as_deref()).filter(|_| is_starting)?;
    Some(clock::seconds_between(since, reconcile.input.now))
}

fn startup_seconds_left(reconcile: &Reconcile<'_>) -> Option<u64> {
    let limit = reconcile.input.prepared.job.spec().run_policy.startup_deadline_seconds?;
    let seconds = if has_no_pod_yet(reconcile) { Some(0) } else { seconds_starting(reconcile) };
    seconds.map(|seconds| limit.saturating_sub(seconds))
}

/// Sets the start time of an attempt with a startup deadline to now, if its pods are about to be created. The
/// operator may have died after it wrote the attempt to the status, and its downtime must not count.
pub(super) fn begin_start(reconcile: &mut Reconcile<'_>) {
    let has_deadline = reconcile.input.prepared.job.spec().run_policy.startup_deadline_seconds.is_some();
    if has_deadline && has_no_pod_yet(reconcile) {
        reconcile.status.attempt_start_time = Some(clock::rfc3339(reconcile.input.now));
    }
}

/// Whether the attempt's pods may be created, now or once a deleted claim is gone, and no operator has tried
/// it yet. Pods that the API server refused count as tried.
fn has_no_pod_yet(reconcile: &Reconcile<'_>) -> bool {
    let is_refused = |condition: &Condition| {
        condition.type_ == ConditionType::Reconciling
            && APPLY_FAILURES.iter().any(|reason| condition.reason == reason.name())
    };
    reconcile.pods.present().next().is_none()
        && !reconcile.pods.missing().is_empty()
        && !reconcile.status.attempt_in_place
        && queue::may_create_pods(reconcile.input.queueing)
        && !reconcile.input.status.conditions.iter().any(is_refused)
}

/// Returns the seconds until the next step must be finished; `None` without such a limit, and without a
/// report of the trainer, which may still train. The time without a step is measured by the clock of this
/// operator, because clocks of ranks and of earlier operators may differ.
fn stall_seconds_left(reconcile: &Reconcile<'_>) -> Option<u64> {
    let limit = reconcile.input.prepared.job.spec().run_policy.stall_deadline_seconds?;
    let ran_at = reconcile.time(reconcile.status.attempt_running_time.as_deref())?;
    let report = reconcile.input.report.filter(|report| report.attempt == reconcile.attempt())?;
    let running = clock::seconds_between(ran_at, reconcile.input.now);
    Some(limit.saturating_sub(report.without_step?.as_secs().min(running)))
}

/// Returns the seconds until the next check for a stall. A silent trainer is checked too, because its next
/// report need not requeue the job.
fn stall_check_seconds(reconcile: &Reconcile<'_>) -> Option<u64> {
    reconcile.status.attempt_running_time.as_ref()?;
    let limit = reconcile.input.prepared.job.spec().run_policy.stall_deadline_seconds?;
    Some(stall_seconds_left(reconcile).unwrap_or(limit))
}

/// Returns the failure of a start that took too long, with the reason why a pod waits.
fn late_start(reconcile: &Reconcile<'_>, seconds: u64) -> Failure {
    let late = |why: &str| format!("not all workers ran within {seconds} s: {why}");
    match held_up_worker(reconcile) {
        Some((worker, cause, why)) => Failure::of_worker(cause, late(&why), worker),
        None => Failure::of_job(FailureCause::StartFailed, late("some have not started")),
    }
}

fn held_up_worker<'a>(reconcile: &Reconcile<'a>) -> Option<(&'a Worker, FailureCause, String)> {
    reconcile.pods.present().find_map(|worker| {
        let (cause, why) = match worker.waiting.as_deref()? {
            Waiting::Unschedulable(why) => (FailureCause::NotScheduled, why.clone()),
            Waiting::Container(why) => (FailureCause::StartFailed, in_words(why)),
        };
        Some((worker, cause, why))
    })
}
