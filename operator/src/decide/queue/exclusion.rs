//! Exclusion of nodes from the assignment of a job whose nodes Kueue chooses (topology-aware scheduling).
//! Kueue keeps the nodes of an admitted Workload and ignores preferences of pods, so another attempt would
//! begin on the node where the last one failed.
//!
//! ```text
//! failure at a node -> status: the node is excluded, the attempt is over -> pods are gone
//!                   -> Workload deleted -> Workload without the node -> admitted -> next attempt
//! ```

use std::time::Duration;

use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType};

use super::super::failure::Failure;
use super::super::{Reconcile, clock};

/// Maximum number of excluded nodes. Beyond it, the node that was excluded first is allowed again.
const MAX_NODES: usize = 16;
/// Number of failures of one cause, without a new checkpoint in between, from which a node that may be at
/// fault is excluded. An error of the program occurs on every node, so a single failure is no reason to give
/// quota back.
const MIN_FAILURES: u32 = 2;
/// Maximum time that a job waits for quota without the excluded nodes.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Whether a node can be excluded: Kueue has assigned single nodes, and the Workload is the operator's own.
/// MultiKueue deletes a job whose Workload differs from that of the manager cluster, so a prebuilt Workload
/// is neither changed nor replaced.
pub(in crate::decide) fn is_possible(reconcile: &Reconcile<'_>) -> bool {
    let queueing = reconcile.input.queueing;
    queueing.queue.is_some() && queueing.prebuilt.is_none() && has_hostnames(reconcile)
}

/// Whether Kueue has assigned single nodes to the job.
fn has_hostnames(reconcile: &Reconcile<'_>) -> bool {
    let workload = reconcile.input.queueing.workload.as_ref().filter(|workload| workload.has_quota);
    workload.is_some_and(|workload| workload.assignments.iter().any(|one| one.has_hostnames))
}

/// Excludes the node of a failure that is counted already. `is_asked` says whether a rule of the job wants
/// the node to be avoided. Returns an explanation if the next attempt may begin on the node at fault, because
/// MultiKueue keeps the job's assigned nodes.
pub(in crate::decide) fn exclude_node(
    reconcile: &mut Reconcile<'_>,
    failure: &Failure,
    is_asked: bool,
) -> Option<String> {
    let node = failure.node.as_ref().filter(|node| !node.is_empty())?;
    let is_at_fault = failure.cause.is_the_nodes() || is_asked || fails_again(reconcile, failure.cause, node);
    if !is_at_fault {
        return None;
    }
    if !is_possible(reconcile) {
        let is_kept = reconcile.input.queueing.prebuilt.is_some() && has_hostnames(reconcile);
        let advice = "cordon the node, then suspend and resume the job in the manager cluster";
        return is_kept.then(|| {
            format!("MultiKueue keeps the job's place, so the next attempt may begin on {node}: {advice}")
        });
    }
    let excluded = &mut reconcile.status.excluded_nodes;
    if !excluded.contains(node) {
        excluded.push(node.clone());
        let num_surplus = excluded.len().saturating_sub(MAX_NODES);
        excluded.drain(..num_surplus);
    }
    None
}

/// Whether failures have occurred repeatedly both of a cause that may be a node's fault and on this node.
fn fails_again(reconcile: &Reconcile<'_>, cause: FailureCause, node: &str) -> bool {
    let status = &reconcile.status;
    let count = |failures: Option<&u32>| failures.copied().unwrap_or(0);
    cause.may_be_the_nodes()
        && count(status.retries_used.get(&cause)) >= MIN_FAILURES
        && count(status.failures_by_node.get(node)) >= MIN_FAILURES
}

/// Returns the excluded nodes that Kueue may have assigned to the job, because its Workload was created
/// before they were excluded.
pub(in crate::decide) fn nodes_of_place<'a>(reconcile: &'a Reconcile<'_>) -> Vec<&'a str> {
    let workload = reconcile.input.queueing.workload.as_ref().filter(|_| is_possible(reconcile));
    let Some(workload) = workload else { return Vec::new() };
    let nodes = reconcile.status.excluded_nodes.iter();
    nodes.filter(|node| !workload.excluded_nodes.contains(*node)).map(String::as_str).collect()
}

/// Allows all nodes again once a job whose Workload excludes nodes has waited for quota for [`LONGEST_WAIT`].
/// Returns the time until then.
pub(in crate::decide) fn expire(reconcile: &mut Reconcile<'_>) -> Option<Duration> {
    let workload = reconcile.input.queueing.workload.as_ref()?;
    if workload.has_quota || workload.excluded_nodes.is_empty() || reconcile.status.excluded_nodes.is_empty()
    {
        return None;
    }
    let mut conditions = reconcile.input.status.conditions.iter();
    let waits = conditions.find(|one| one.type_ == ConditionType::Suspended)?;
    let since = reconcile.time(Some(waits.last_transition_time.as_str()));
    let since = since.filter(|_| waits.status == ConditionStatus::True)?;
    let left = clock::until(Some(since + LONGEST_WAIT), reconcile.input.now);
    if left.is_none() {
        reconcile.status.excluded_nodes.clear();
    }
    Some(left.unwrap_or_default().min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests;
