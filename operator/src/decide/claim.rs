//! A claim that is deleted before all workers have mounted it. The kubelet starts no pod on such a claim, and
//! Kubernetes keeps the claim while a pod that uses it has a node: both would wait for each other for ever.
//!
//! ```text
//! claim deleted -> attempt that cannot start any more ends -> its pods are gone -> claim is gone
//!               -> claim and pods of the next attempt are created
//! ```
//! No pod is created before the claim is gone. Workers that run continue on it until they end.

use rlt_api::FailureCause;
use rlt_objects::worker::{Worker, WorkerPhase};

use super::failure::Failure;
use super::{JobState, Reconcile};

/// Returns the claim that is being deleted, if workers of the attempt have not started. The pods of an
/// attempt in place run already.
fn awaited<'a>(reconcile: &Reconcile<'a>) -> Option<&'a str> {
    let status = &reconcile.status;
    let is_starting = status.attempt_running_time.is_none() && !status.attempt_in_place;
    let name = reconcile.input.deleting_claim.filter(|_| is_starting)?;
    let is_pending = |worker: &Worker| worker.phase == WorkerPhase::Pending;
    reconcile.pods.places().any(|(_, place)| place.is_none_or(is_pending)).then_some(name)
}

/// Returns the failure of an attempt that cannot start, because its own pods keep the claim. It names no pod
/// and no node, which are not at fault.
pub(super) fn failure(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let name = awaited(reconcile)?;
    // Pods without a node do not keep a claim, and pods that are being deleted will not for long.
    let keeps_claim = |worker: &Worker| worker.node.is_some() && !worker.is_deleting;
    let message =
        format!("claim `{name}`, with the checkpoints in it, was deleted before all workers had started");
    let failure = Failure::of_job(FailureCause::Disrupted, message);
    reconcile.pods.present().any(keeps_claim).then_some(failure)
}

/// Returns the state of an attempt whose workers wait until the claim is gone.
pub(super) fn wait(reconcile: &Reconcile<'_>) -> Option<JobState> {
    let name = awaited(reconcile)?;
    Some(JobState::WaitingForClaim(format!(
        "claim `{name}` is being deleted: workers start once it is gone and another one is made; \
         `kubectl describe pvc {name}` names the pods that use it"
    )))
}

/// Whether a spare has to be deleted so that it does not keep a claim that is being deleted: a spare that
/// cannot start, and any spare while workers wait for the claim.
pub(super) fn must_release(reconcile: &Reconcile<'_>, spare: &Worker) -> bool {
    let cannot_start = spare.phase == WorkerPhase::Pending;
    reconcile.input.deleting_claim.is_some() && (cannot_start || awaited(reconcile).is_some())
}
