//! Where the workers of an attempt are, by the labels of `spec.workers.topology`: it is read and written
//! once, when all of them run.

use std::collections::BTreeSet;
use std::sync::Arc;

use rlt_api::status::{DomainStatus, RLTrainingJobStatus, TopologyStatus};
use rlt_objects::prepare::Prepared;

use super::job_pods::{GroupPods, JobPods};
use super::{Reconcile, ReconcileInput};
use crate::nodes::NodeLabels;

/// Domains that a status has at most.
const MAX_DOMAINS: usize = 64;

/// The labels by which workers are near to each other, the widest first.
pub fn topology_labels(prepared: &Prepared) -> Vec<&str> {
    let Some(topology) = &prepared.job.spec().workers.topology else { return Vec::new() };
    let slice = topology.slice.as_ref().map(|slice| &slice.required);
    let mut labels: Vec<_> =
        [topology.required.as_ref(), topology.preferred.as_ref(), slice].into_iter().flatten().collect();
    labels.dedup();
    labels.into_iter().map(String::as_str).collect()
}

/// The nodes whose labels a decision needs: those of an attempt that runs, and of which the status does not
/// say yet where it is.
pub fn nodes_to_read(input: &ReconcileInput<'_>) -> BTreeSet<Arc<str>> {
    let is_over = input.status.completion_time.is_some();
    if is_over || topology_labels(input.prepared).is_empty() || is_known(input.status) {
        return BTreeSet::new();
    }
    let pods = JobPods::new(input.workers, input.status.attempt.unwrap_or(1), &input.prepared.plan);
    let nodes = pods.places().map(|(_, pod)| pod.filter(|worker| worker.is_in_place())?.node.clone());
    nodes.collect::<Option<_>>().unwrap_or_default()
}

/// Whether a status says where the workers of the attempt that runs are.
fn is_known(status: &RLTrainingJobStatus) -> bool {
    let mut groups = status.worker_groups.iter();
    status.attempt_running_time.is_some() && groups.any(|group| !group.topology.is_empty())
}

/// Where the workers of each group are; as the status says where nothing new was read.
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

/// The domains in the order of the workers.
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
