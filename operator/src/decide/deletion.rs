//! Deletion of pods: with their grace period, or by force where the node is lost. A pod whose node merely
//! does not answer may still run, so its name stays occupied.

use std::sync::Arc;
use std::time::Duration;

use rlt_api::ExitCode;
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::worker::Worker;

use super::{Deletion, JobState, Reconcile, clock};
use crate::nodes::NodeState;

/// Grace period of the remaining pods of a failed attempt: without their peer they cannot save a checkpoint.
const SURVIVORS_GRACE_SECONDS: u32 = 5;

/// Returns deletions for pods without a deletion timestamp, and for pods on a lost node.
pub(super) fn deletions<'w>(
    reconcile: &Reconcile<'_>,
    workers: impl Iterator<Item = &'w Worker>,
    grace_seconds: Option<u32>,
) -> Vec<Deletion> {
    let deletion = |worker: &Worker| {
        let lost_node = worker.node.clone().filter(|_| is_lost(reconcile, worker));
        let grace_seconds = if lost_node.is_some() { Some(0) } else { grace_seconds };
        let is_due = lost_node.is_some() || !worker.is_deleting;
        is_due.then(|| Deletion {
            name: worker.name.clone(),
            uid: worker.uid.clone(),
            grace_seconds,
            lost_node,
        })
    };
    workers.filter_map(deletion).collect()
}

/// Whether the pod's node is lost, so that none of its processes can run.
pub(super) fn is_lost(reconcile: &Reconcile<'_>, worker: &Worker) -> bool {
    node_state(reconcile, worker) == Some(&NodeState::Lost)
}

/// Whether the pod's node does not answer.
pub(super) fn is_silent(reconcile: &Reconcile<'_>, worker: &Worker) -> bool {
    node_state(reconcile, worker) == Some(&NodeState::Silent)
}

pub(super) fn node_state<'a>(reconcile: &Reconcile<'a>, worker: &Worker) -> Option<&'a NodeState> {
    let node: &Arc<str> = worker.node.as_ref()?;
    reconcile.input.nodes.get(node)
}

/// Returns the remaining grace period of a deleted pod; `None` once it is over.
pub(super) fn time_left(reconcile: &Reconcile<'_>, worker: &Worker) -> Option<Duration> {
    clock::until(worker.leaves_by, reconcile.input.now)
}

/// Returns the grace period for the remaining pods of `attempt`, if the attempt has failed. `None` stands for
/// the pods' own grace period: after a suspension, or after an exit because of a stop signal, they may still
/// be saving a checkpoint.
pub(super) fn survivors_grace(status: &RLTrainingJobStatus, attempt: u32) -> Option<u32> {
    let failure = status.last_failure.as_ref().filter(|failure| failure.attempt == attempt)?;
    let stopped = i32::from(ExitCode::Preempted.code());
    (failure.exit_code != Some(stopped)).then_some(SURVIVORS_GRACE_SECONDS)
}

/// Returns a stuck state for a pod whose grace period is over and whose node does not answer: only an
/// administrator can know whether it still runs.
pub(super) fn stuck(reconcile: &Reconcile<'_>) -> Option<JobState> {
    let is_stuck =
        |worker: &&Worker| is_leaving_silently(reconcile, worker) && time_left(reconcile, worker).is_none();
    let worker = reconcile.pods.all().find(is_stuck)?;
    let (pod, node) = (&worker.name, worker.node.as_deref().unwrap_or_default());
    Some(JobState::Stuck(format!(
        "{pod} cannot be stopped, because its node {node} does not answer: bring the node back, delete it, or taint it \
         node.kubernetes.io/out-of-service once nothing runs on it"
    )))
}

/// Returns the time until the grace period of a pod on a silent node is over.
pub(super) fn next(reconcile: &Reconcile<'_>) -> Option<Duration> {
    let silent = reconcile.pods.all().filter(|worker| is_leaving_silently(reconcile, worker));
    silent.filter_map(|worker| time_left(reconcile, worker)).min()
}

fn is_leaving_silently(reconcile: &Reconcile<'_>, worker: &Worker) -> bool {
    worker.is_deleting && is_silent(reconcile, worker)
}
