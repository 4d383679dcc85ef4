//! Deletion of pods: with their grace period, or by force where the node is lost. A pod whose node only
//! stopped answering may still run; its name stays taken.

use std::sync::Arc;
use std::time::Duration;

use super::{Deletion, JobState, Round, clock};
use crate::nodes::NodeState;
use crate::worker::Worker;

/// The pods of these to delete: those without a deletion timestamp, and those on a lost node.
pub(super) fn deletions<'w>(
    round: &Round<'_>,
    workers: impl Iterator<Item = &'w Worker>,
    grace_seconds: Option<u32>,
) -> Vec<Deletion> {
    let deletion = |worker: &Worker| {
        let lost_node = worker.node.clone().filter(|_| is_lost(round, worker));
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
pub(super) fn is_lost(round: &Round<'_>, worker: &Worker) -> bool {
    node_state(round, worker) == Some(&NodeState::Lost)
}

/// Whether the pod's node does not answer.
pub(super) fn is_silent(round: &Round<'_>, worker: &Worker) -> bool {
    node_state(round, worker) == Some(&NodeState::Silent)
}

pub(super) fn node_state<'a>(round: &Round<'a>, worker: &Worker) -> Option<&'a NodeState> {
    let node: &Arc<str> = worker.node.as_ref()?;
    round.input.nodes.get(node)
}

/// What is left of a deleted pod's grace period; `None` once it is over.
pub(super) fn time_left(round: &Round<'_>, worker: &Worker) -> Option<Duration> {
    clock::until(worker.leaves_by, round.input.now)
}

/// A pod whose grace period is over and whose node does not answer: only a person can tell whether it still
/// runs.
pub(super) fn stuck(round: &Round<'_>) -> Option<JobState> {
    let is_stuck =
        |worker: &&Worker| is_leaving_silently(round, worker) && time_left(round, worker).is_none();
    let worker = round.pods.all().find(is_stuck)?;
    let (pod, node) = (&worker.name, worker.node.as_deref().unwrap_or_default());
    Some(JobState::Stuck(format!(
        "{pod} cannot be stopped, because its node {node} does not answer: bring the node back, delete it, or taint it \
         node.kubernetes.io/out-of-service once nothing runs on it"
    )))
}

/// Time until the grace period of a pod on a silent node is over.
pub(super) fn next(round: &Round<'_>) -> Option<Duration> {
    let silent = round.pods.all().filter(|worker| is_leaving_silently(round, worker));
    silent.filter_map(|worker| time_left(round, worker)).min()
}

fn is_leaving_silently(round: &Round<'_>, worker: &Worker) -> bool {
    worker.is_deleting && is_silent(round, worker)
}
