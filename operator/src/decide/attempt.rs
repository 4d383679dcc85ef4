//! An attempt without a failure: its pods, and those of earlier attempts.

use super::{Decision, JobState, Reconcile, claim, clock, deadlines, deletion, evacuation, queue, spares};

/// Deletes the pods of earlier attempts, and creates the missing pods of the current one.
pub(super) fn run(mut reconcile: Reconcile<'_>) -> Decision {
    let grace = deletion::survivors_grace(&reconcile.status, reconcile.attempt().saturating_sub(1));
    let earlier = spares::surplus_of_earlier(&reconcile);
    reconcile.delete = deletion::deletions(&reconcile, earlier.into_iter(), grace);
    reconcile.delete.extend(evacuation::deletions(&reconcile));
    if let Some(wait) = deadlines::wait_to_start(&reconcile) {
        return reconcile.decide(JobState::WaitingToRestart(wait), Some(wait));
    }
    let claim_is_deleting = reconcile.input.deleting_claim.is_some();
    let may_create_pods = queue::may_create_pods(reconcile.input.queueing) && !claim_is_deleting;
    if may_create_pods {
        deadlines::begin_start(&mut reconcile);
    }
    if may_create_pods && !reconcile.status.attempt_in_place {
        reconcile.start = reconcile.pods.missing();
    }
    reconcile.assign = spares::assignments(&reconcile);
    let state = reconcile.pods.state(&reconcile.status);
    reconcile.delete.extend(spares::deletions(&reconcile, &state));
    if may_create_pods {
        reconcile.start.extend(spares::missing(&reconcile, &state));
    }
    if state == JobState::Running && reconcile.status.attempt_running_time.is_none() {
        reconcile.status.attempt_running_time = Some(clock::rfc3339(reconcile.input.now));
    }
    if let Some(state) = evacuation::begin(&mut reconcile) {
        return reconcile.write_first(state);
    }
    let delay = || claim::wait(&reconcile).or_else(|| deadlines::start_delay(&reconcile));
    let state = deletion::stuck(&reconcile).or_else(delay).unwrap_or(state);
    let requeue_after = deadlines::next(&reconcile);
    let is_rewritten = is_rewritten(&reconcile);
    // The ConfigMap gets this specification before the status is written.
    reconcile.status.accepted = Some(reconcile.input.prepared.accepted.clone());
    if is_rewritten {
        reconcile.start.clear();
        return reconcile.write_first(state);
    }
    let mut decision = reconcile.decide(state, requeue_after);
    decision.needs_children = true;
    decision
}

/// Whether this release serializes the training that the job began with differently from the release that
/// recorded its digest. The status then gets the new digest before the ConfigMap gets the new text, whose
/// training would not match the old digest.
fn is_rewritten(reconcile: &Reconcile<'_>) -> bool {
    let accepted = &reconcile.input.prepared.accepted;
    let recorded = reconcile.input.status.accepted.as_ref();
    recorded.is_some_and(|recorded| {
        recorded.spec_digest == accepted.spec_digest && recorded.training_digest != accepted.training_digest
    })
}
