//! Workers on nodes that they are better off without: one that is about to be taken away, or one whose
//! hardware broke while they ran. They are stopped with their grace period, so that all save a checkpoint,
//! and the next attempt prefers other nodes.
//!
//! The evacuation is written to the status before the pod is deleted: pods and nodes may be gone when the
//! attempt ends.

use rlt_api::FailureCause;
use rlt_api::status::EvacuationStatus;

use super::failure::Failure;
use super::{Deletion, JobState, Round, deletion};
use crate::nodes::{Impairment, NodeState};
use crate::worker::Worker;

/// Longest message of a node in a status, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Writes down that a worker has to leave its node; `None` where none has.
pub(super) fn begin(round: &mut Round<'_>) -> Option<JobState> {
    if round.status.evacuation.is_some() || round.status.attempt_running_time.is_none() {
        return None;
    }
    let mut workers = round.pods.present().filter(|worker| !worker.is_deleting && !worker.is_finished());
    let (worker, why) = workers.find_map(|worker| Some((worker, reason_to_leave(round, worker)?)))?;
    let end = why.message.floor_char_boundary(MAX_MESSAGE_BYTES);
    let evacuation = EvacuationStatus {
        cause: why.cause,
        pod: worker.name.to_string(),
        node: worker.node.as_deref().unwrap_or_default().to_owned(),
        message: why.message[..end].to_owned(),
    };
    let state = JobState::Stopping(evacuation.cause, in_words(&evacuation));
    round.status.evacuation = Some(evacuation);
    Some(state)
}

/// The pod to delete in an evacuation that is written down.
pub(super) fn deletions(round: &Round<'_>) -> Vec<Deletion> {
    let Some(evacuation) = &round.input.status.evacuation else { return Vec::new() };
    let is_it = |worker: &&Worker| *worker.name == *evacuation.pod && !worker.is_finished();
    deletion::deletions(round, round.pods.present().filter(is_it), None)
}

/// What speaks against the node of a worker, as far as the worker is stopped for it. One that was given to
/// the attempt as it is now is kept: there is no better one, and every move would be in vain.
fn reason_to_leave<'a>(round: &Round<'a>, worker: &Worker) -> Option<&'a Impairment> {
    let NodeState::Impaired(why) = deletion::node_state(round, worker)? else { return None };
    let node = worker.node.as_deref()?;
    let was_left = round.status.failures_by_node.contains_key(node) && round.status.short_attempts.is_some();
    // Kueue keeps to the nodes that it chose at admission, for as long as they are there.
    let is_bound = has_chosen_nodes(round) && why.cause == FailureCause::NodeProblem;
    (why.stops_workers && !was_left && !is_bound && is_new(round, why)).then_some(why)
}

fn has_chosen_nodes(round: &Round<'_>) -> bool {
    let workload = round.input.queueing.workload.as_ref();
    workload.is_some_and(|workload| workload.assignments.iter().any(|one| one.has_topology))
}

/// Whether a node is worse than when the attempt began.
fn is_new(round: &Round<'_>, why: &Impairment) -> bool {
    let began = round.time(round.status.attempt_start_time.as_deref());
    why.since.zip(began).is_none_or(|(since, began)| since >= began)
}

/// Why a worker leaves or has failed, where its node says it.
pub(super) fn cause(round: &Round<'_>, worker: &Worker) -> Option<Failure> {
    let NodeState::Impaired(why) = deletion::node_state(round, worker)? else { return None };
    let node = worker.node.as_deref().unwrap_or_default();
    let message = format!("its node {node}: {}", why.message);
    is_new(round, why).then(|| Failure::of_worker(why.cause, message, worker))
}

/// The failure of an attempt, which counts as an evacuation where it is the end of one.
pub(super) fn attribute(round: &Round<'_>, failure: Failure) -> Failure {
    match &round.status.evacuation {
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

/// Leaves the evacuation behind with its attempt.
pub(super) fn end(round: &mut Round<'_>) {
    round.status.evacuation = None;
}

/// Which worker has to leave, and why.
fn in_words(evacuation: &EvacuationStatus) -> String {
    let EvacuationStatus { pod, node, message, .. } = evacuation;
    format!("{pod}: its node {node}: {message}")
}
