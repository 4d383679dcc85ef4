//! Suspension and resumption of a job. The time of a suspension does not count for its active deadline.

use std::time::Duration;

use rlt_api::Reason;

use super::{Decision, JobState, Reconcile, attempt, clock, deletion, evacuation, exclusion, queue, spares};

/// Requeue delay of a job that requests a queue in a cluster without Kueue.
pub(super) const REQUEUE_WITHOUT_KUEUE: Duration = Duration::from_secs(30);

/// Deletes all pods because of `spec.runPolicy.suspend`, and clears the excluded nodes: a user who suspends
/// and resumes a job allows all nodes again.
pub(super) fn suspend(mut reconcile: Reconcile<'_>) -> Decision {
    reconcile.status.excluded_nodes.clear();
    pause(reconcile, JobState::Suspended, None)
}

/// Ends an attempt that has failed on a node that the next attempt must not use. The job gives its quota back
/// once no pod is left, and begins the next attempt when it is admitted again.
pub(super) fn leave_place(mut reconcile: Reconcile<'_>) -> Decision {
    deactivate(&mut reconcile);
    evacuation::end(&mut reconcile);
    reconcile.write_first(JobState::Suspending)
}

/// Deletes all pods, and waits for the queue.
pub(super) fn wait_for_queue(mut reconcile: Reconcile<'_>, hold: JobState) -> Decision {
    let for_queue =
        matches!(hold, JobState::Queued(Reason::QueueMissing, _)).then_some(REQUEUE_WITHOUT_KUEUE);
    let until_expiry = exclusion::expire(&mut reconcile);
    let mut decision = match queue::leaves_place(&reconcile) {
        true => give_place_back(reconcile, hold),
        false => pause(reconcile, hold, None),
    };
    let waits = [decision.requeue_after, for_queue, until_expiry];
    decision.requeue_after = waits.into_iter().flatten().min();
    decision
}

/// Deletes the pods of a job that gives its quota back. Pods of a failed attempt get a short grace period,
/// because they have lost their peer and cannot save a checkpoint.
fn give_place_back(reconcile: Reconcile<'_>, held: JobState) -> Decision {
    let grace_seconds = deletion::survivors_grace(&reconcile.status, reconcile.attempt());
    pause(reconcile, held, grace_seconds)
}

/// Ends the attempt in the status, and then deletes all pods, by default with their own grace period, in
/// which they save a checkpoint. `held` is the state once no pod is left. Pods that were deleted before the
/// status was written would count as a failure of the attempt, if the job is resumed while no operator runs.
fn pause(mut reconcile: Reconcile<'_>, held: JobState, grace_seconds: Option<u32>) -> Decision {
    let has_pods = reconcile.pods.all().next().is_some();
    let is_unwritten = record_first_attempt(&mut reconcile) || reconcile.status.active_since.is_some();
    deactivate(&mut reconcile);
    if has_pods && is_unwritten {
        return reconcile.write_first(JobState::Suspending);
    }
    reconcile.delete = deletion::deletions(&reconcile, reconcile.pods.all(), grace_seconds);
    if !has_pods {
        return reconcile.decide(held, None);
    }
    let state = deletion::stuck(&reconcile).unwrap_or(JobState::Suspending);
    let requeue_after = deletion::next(&reconcile);
    reconcile.decide(state, requeue_after)
}

/// Records the first attempt of a job whose pods were made by an operator that ended before it wrote the
/// status. Otherwise the job would begin that attempt when it is resumed, with pods that are being deleted.
/// Returns whether there is such an attempt.
fn record_first_attempt(reconcile: &mut Reconcile<'_>) -> bool {
    let is_unwritten = reconcile.status.attempt.is_none() && reconcile.pods.all().next().is_some();
    if is_unwritten {
        reconcile.status.attempt = Some(1);
        reconcile.status.start_time = Some(clock::rfc3339(reconcile.input.now));
    }
    is_unwritten
}

/// Stops the clock of the job's active time.
fn deactivate(reconcile: &mut Reconcile<'_>) {
    if reconcile.status.active_since.is_some() {
        reconcile.status.active_seconds = Some(reconcile.active_seconds());
        reconcile.status.active_since = None;
    }
}

/// Begins the first attempt, or the next one after a suspension.
pub(super) fn begin(mut reconcile: Reconcile<'_>) -> Decision {
    let now = clock::rfc3339(reconcile.input.now);
    reconcile.status.active_since = Some(now.clone());
    reconcile.status.attempt_start_time = Some(now.clone());
    reconcile.status.attempt_running_time = None;
    evacuation::end(&mut reconcile);
    spares::start_afresh(&mut reconcile);
    match reconcile.status.attempt {
        // Pods of the first attempt need not wait for the status, because no earlier attempt has pods.
        None => {
            reconcile.status.attempt = Some(1);
            reconcile.status.start_time = Some(now);
            // An earlier operator created the pods and ended before it wrote the status. The pods may have
            // exited since.
            if reconcile.pods.all().next().is_some() {
                return reconcile.write_first(JobState::Starting);
            }
            attempt::run(reconcile)
        }
        Some(attempt) => {
            // Reports that arrived while no decision was made are counted now: later decisions ignore those
            // of an earlier attempt.
            reconcile.take_report();
            reconcile.status.attempt = Some(attempt + 1);
            reconcile.status.restarts_in_place.clear();
            reconcile.write_first(JobState::Restarting)
        }
    }
}
