//! Topology domains of an attempt's workers, by the labels of `spec.workers.topology`. They are read and
//! written to the status once, when all workers run.

use std::collections::BTreeSet;
use std::sync::Arc;

use rlt_api::status::{DomainStatus, RLTrainingJobStatus, TopologyStatus};
use rlt_objects::prepare::Prepared;

use super::job_pods::{GroupPods, JobPods};
use super::{Reconcile, ReconcileInput};
use crate::nodes::NodeLabels;

/// Largest number of domains in a status.
const MAX_DOMAINS: usize = 64;

/// Returns the labels of the job's topology, the widest domain first.
pub fn topology_labels(prepared: &Prepared) -> Vec<&str> {
    let Some(topology) = &prepared.job.spec().workers.topology else { return Vec::new() };
    let slice = topology.slice.as_ref().map(|slice| &slice.required);
    let mut labels: Vec<_> =
        [topology.required.as_ref(), topology.preferred.as_ref(), slice].into_iter().flatten().collect();
    labels.dedup();
    labels.into_iter().map(String::as_str).collect()
}

/// Returns the nodes whose labels a decision needs: those of a running attempt whose topology is not in the
/// status yet.
pub fn nodes_to_read(input: &ReconcileInput<'_>) -> BTreeSet<Arc<str>> {
    let is_over = input.status.completion_time.is_some();
    if is_over || topology_labels(input.prepared).is_empty() || is_known(input.status) {
        return BTreeSet::new();
    }
    let pods = JobPods::new(input.workers, input.status.attempt.unwrap_or(1), &input.prepared.plan);
    let nodes = pods.places().map(|(_, pod)| pod.filter(|worker| worker.is_in_place())?.node.clone());
    nodes.collect::<Option<_>>().unwrap_or_default()
}

/// Whether the status has the topology of the running attempt.
fn is_known(status: &RLTrainingJobStatus) -> bool {
    let mut groups = status.worker_groups.iter();
    status.attempt_running_time.is_some() && groups.any(|group| !group.topology.is_empty())
}

/// Returns the topology of each group of workers. If no labels were read, it is taken from the status.
pub(super) fn topologies(reconcile: &Reconcile<'_>) -> Vec<Vec<TopologyStatus>> {
    let Some(nodes) = reconcile.input.node_labels else {
        let known = reconcile.status.worker_groups.iter().map(|group| group.topology.clone());
        return known.filter(|_| is_known(&reconcile.status)).collect();
    };
    let labels = topology_labels(reconcile.input.prepared);
    let of_group = |group: &GroupPods<'_>| {
        let of = |label: &&str| TopologyStatus {
            label: (*label).to_owned(),
            domains: domains(group, nodes, label),
        };
        labels.iter().map(of).collect()
    };
    reconcile.pods.groups.iter().map(of_group).collect()
}

/// Returns the domains in the order of the workers, with consecutive workers of a domain merged.
fn domains(group: &GroupPods<'_>, nodes: &NodeLabels, label: &str) -> Vec<DomainStatus> {
    let name = |idx: usize| {
        let node = group.current[idx].and_then(|worker| worker.node.as_ref());
        node.and_then(|node| nodes.get(node)?.get(label)).map(String::as_str).unwrap_or_default()
    };
    let indices: Vec<_> = (0..group.current.len()).collect();
    let runs = indices.chunk_by(|one, next| name(*one) == name(*next)).take(MAX_DOMAINS);
    let domain = |run: &[usize]| DomainStatus {
        name: name(run[0]).to_owned(),
        workers: match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        },
    };
    runs.map(domain).collect()
}
