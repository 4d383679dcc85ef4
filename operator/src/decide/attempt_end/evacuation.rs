//! Evacuation of workers from a node whose termination was announced, or whose hardware broke while they ran.
//! The workers are stopped with their grace period, so that all save a checkpoint, and the next attempt
//! prefers other nodes.
//!
//! The evacuation is written to the status before the pod is deleted, because pods and nodes may be gone when
//! the attempt ends.

use rlt_api::FailureCause;
use rlt_api::status::EvacuationStatus;
use rlt_objects::node_signals::Impairment;
use rlt_objects::worker::Worker;

use super::super::{Deletion, JobState, Reconcile, deletion, exclusion};
use super::failure::Failure;
use crate::nodes::NodeState;

/// Longest message of a node in a status, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Records in the status that a worker has to leave its node; returns `None` if no worker has to.
pub(in crate::decide) fn begin(reconcile: &mut Reconcile<'_>) -> Option<JobState> {
    if reconcile.status.evacuation.is_some() || reconcile.status.attempt_running_time.is_none() {
        return None;
    }
    let mut workers = reconcile.pods.present().filter(|worker| !worker.is_deleting && !worker.is_finished());
    let (worker, why) = workers.find_map(|worker| Some((worker, reason_to_leave(reconcile, worker)?)))?;
    let end = why.message.floor_char_boundary(MAX_MESSAGE_BYTES);
    let evacuation = EvacuationStatus {
        cause: why.cause,
        pod: worker.name.to_string(),
        node: worker.node.as_deref().unwrap_or_default().to_owned(),
        message: why.message[..end].to_owned(),
    };
    let state = JobState::Stopping(evacuation.cause, in_words(&evacuation));
    reconcile.status.evacuation = Some(evacuation);
    Some(state)
}

/// Returns the deletion of the pod that a recorded evacuation names.
pub(in crate::decide) fn deletions(reconcile: &Reconcile<'_>) -> Vec<Deletion> {
    let Some(evacuation) = &reconcile.input.status.evacuation else { return Vec::new() };
    let is_it = |worker: &&Worker| *worker.name == *evacuation.pod && !worker.is_finished();
    deletion::deletions(reconcile, reconcile.pods.present().filter(is_it), None)
}

/// Returns the impairment of a worker's node for which the worker must be stopped. A worker whose node was
/// impaired already when the attempt began stays: no better node was available, and a move would not help.
fn reason_to_leave<'a>(reconcile: &Reconcile<'a>, worker: &Worker) -> Option<&'a Impairment> {
    let NodeState::Impaired(why) = deletion::node_state(reconcile, worker)? else { return None };
    let node = worker.node.as_deref()?;
    let was_left =
        reconcile.status.failures_by_node.contains_key(node) && reconcile.status.short_attempts.is_some();
    // Kueue keeps the nodes that it chose at admission, as long as they exist.
    let is_bound = has_chosen_nodes(reconcile)
        && !exclusion::is_possible(reconcile)
        && why.cause == FailureCause::NodeProblem;
    (why.stops_workers && !was_left && !is_bound && is_new(reconcile, why)).then_some(why)
}

fn has_chosen_nodes(reconcile: &Reconcile<'_>) -> bool {
    let workload = reconcile.input.queueing.workload.as_ref();
    workload.is_some_and(|workload| workload.assignments.iter().any(|one| one.has_topology))
}

/// Whether an impairment began after the attempt did, or either time is unknown.
fn is_new(reconcile: &Reconcile<'_>, why: &Impairment) -> bool {
    let began = reconcile.time(reconcile.status.attempt_start_time.as_deref());
    why.since.zip(began).is_none_or(|(since, began)| since >= began)
}

/// Returns the failure of a worker that the impairment of its node explains, if any.
pub(in crate::decide) fn cause(reconcile: &Reconcile<'_>, worker: &Worker) -> Option<Failure> {
    let NodeState::Impaired(why) = deletion::node_state(reconcile, worker)? else { return None };
    let node = worker.node.as_deref().unwrap_or_default();
    let message = format!("its node {node}: {}", why.message);
    is_new(reconcile, why).then(|| Failure::of_worker(why.cause, message, worker))
}

/// Attributes the failure of an attempt to its evacuation, if the evacuation ended it.
pub(in crate::decide) fn attribute(reconcile: &Reconcile<'_>, failure: Failure) -> Failure {
    match &reconcile.status.evacuation {
        Some(evacuation) if failure.cause == FailureCause::Disrupted => Failure {
            cause: evacuation.cause,
            message: format!("its node {}: {}", evacuation.node, evacuation.message),
            pod: Some(evacuation.pod.clone()),
            node: Some(evacuation.node.clone()),
            ..failure
        },
        _ => failure,
    }
}

/// Removes the evacuation from the status, when its attempt ends.
pub(in crate::decide) fn end(reconcile: &mut Reconcile<'_>) {
    reconcile.status.evacuation = None;
}

/// Describes which worker has to leave, and why.
fn in_words(evacuation: &EvacuationStatus) -> String {
    let EvacuationStatus { pod, node, message, .. } = evacuation;
    format!("{pod}: its node {node}: {message}")
}
