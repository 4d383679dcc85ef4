//! Fields that queues and schedulers add to the pods of an attempt. `pod.rs` builds the pod itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Pod, PodAffinity, PodAffinityTerm, PodSchedulingGate, Toleration, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::DynamicObject;
use rlt_plan::WorkerGroup;
use serde::Deserialize;
use serde_json::json;

use super::{BuildInput, Gang, pod_group_name};
use crate::labels;
use crate::queue::Workload;
use crate::served::Served;

/// Annotation with the name of a pod's group, for Volcano's scheduler.
const VOLCANO_ANNOTATION: &str = "scheduling.k8s.io/group-name";
/// Label with the name of a pod's group, for scheduler-plugins.
const COSCHEDULING_LABEL: &str = "scheduling.x-k8s.io/pod-group";
/// Labels, annotation and scheduling gate of Kueue, for the pods whose nodes it chooses.
const KUEUE_POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
const KUEUE_WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
const KUEUE_TOPOLOGY_LABEL: &str = "kueue.x-k8s.io/tas";
const KUEUE_TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";
/// Weight of a preference, the maximum.
const WEIGHT: i32 = 100;

/// Flavors of a Workload's assignments, by name.
pub type Flavors = BTreeMap<String, Flavor>;

/// Nodes of a resource flavor.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Flavor {
    /// Labels of the nodes.
    pub node_labels: BTreeMap<String, String>,
    /// Tolerations of the nodes' taints.
    pub tolerations: Vec<Toleration>,
}

/// Fields that queues and schedulers add to the pods of an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    node_selector: BTreeMap<String, String>,
    tolerations: Vec<Toleration>,
    gates: Vec<PodSchedulingGate>,
    affinity: Option<Affinity>,
    /// Slice of consecutive workers that share a topology domain.
    slice: Option<Slice>,
    /// Name of the PodGroup, if it is of Kubernetes' own kind.
    group: Option<String>,
}

/// Slices of consecutive workers, each of which must be in one topology domain.
#[derive(Clone, Debug, PartialEq)]
struct Slice {
    label: String,
    size: u32,
    /// Labels that select all workers of the attempt.
    workers: BTreeMap<String, String>,
}

/// A queue and a job require different values of a node label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue lets workers run on nodes with {key}={theirs} only, but the job asks for {key}={ours}")]
pub struct PlacementConflict {
    key: String,
    theirs: String,
    ours: String,
}

impl Placement {
    /// Computes the placement of a group of workers in an attempt: in a gang if there is one, and on the
    /// nodes that a queue has reserved.
    pub fn new(
        input: &BuildInput<'_>,
        group: &WorkerGroup,
        attempt: u32,
        gang: Option<Gang>,
        admission: Option<(&Workload, &Flavors)>,
    ) -> Self {
        let (mut placement, is_spare) = (Self::default(), group.is_spare());
        if let Some(gang) = gang {
            placement.join(gang, pod_group_name(group, attempt));
        }
        if let Some((workload, flavors)) = admission {
            placement.admit(group, workload, flavors);
        }
        // A spare belongs to no slice, and is placed near the workers whose ranks it may take.
        let group = if group.is_spare() { input.first_group().unwrap_or(group) } else { group };
        if placement.gates.is_empty() && !is_spare {
            placement.slice = slice(input, group, attempt);
        }
        // Volcano and Kueue place workers close together themselves. Kubernetes' PodGroup loses its topology
        // constraint without notice if a feature gate is off.
        if gang != Some(Gang::Volcano) && placement.gates.is_empty() {
            placement.affinity = affinity(input, group, attempt);
        }
        placement
    }

    fn join(&mut self, gang: Gang, group: String) {
        match gang {
            Gang::Native(_) => self.group = Some(group),
            Gang::Volcano => drop(self.annotations.insert(VOLCANO_ANNOTATION.into(), group)),
            Gang::Coscheduling => drop(self.labels.insert(COSCHEDULING_LABEL.into(), group)),
        }
    }

    fn admit(&mut self, group: &WorkerGroup, workload: &Workload, flavors: &Flavors) {
        self.labels.insert(KUEUE_POD_SET_LABEL.into(), group.name.clone());
        self.annotations.insert(KUEUE_WORKLOAD_ANNOTATION.into(), workload.name.clone());
        if workload.assignments.iter().any(|one| one.name == group.name && one.has_topology) {
            self.labels.insert(KUEUE_TOPOLOGY_LABEL.into(), "true".into());
            self.gates.push(PodSchedulingGate { name: KUEUE_TOPOLOGY_GATE.into() });
        }
        let assigned = workload.assignments.iter().filter(|one| one.name == group.name);
        for flavor in assigned.flat_map(|one| &one.flavors).filter_map(|name| flavors.get(name)) {
            self.node_selector.extend(flavor.node_labels.clone());
            self.tolerations.extend(flavor.tolerations.iter().cloned());
        }
        for update in workload.updates.iter().filter(|update| update.name == group.name) {
            self.labels.extend(update.labels.clone());
            self.annotations.extend(update.annotations.clone());
            self.node_selector.extend(update.node_selector.clone());
            self.tolerations.extend(update.tolerations.iter().cloned());
        }
    }

    /// Adds the placement to a pod.
    ///
    /// # Errors
    /// When the job requires other nodes than the queue has reserved.
    pub fn place(&self, mut pod: Pod) -> Result<Pod, PlacementConflict> {
        let metadata = &mut pod.metadata;
        metadata.labels.get_or_insert_default().extend(self.labels.clone());
        if !self.annotations.is_empty() {
            metadata.annotations.get_or_insert_default().extend(self.annotations.clone());
        }
        let spec = pod.spec.get_or_insert_default();
        if !self.node_selector.is_empty() {
            let selector = spec.node_selector.get_or_insert_default();
            for (key, theirs) in &self.node_selector {
                let ours = selector.entry(key.clone()).or_insert_with(|| theirs.clone()).clone();
                if ours != *theirs {
                    return Err(PlacementConflict { key: key.clone(), theirs: theirs.clone(), ours });
                }
            }
        }
        if !self.tolerations.is_empty() {
            spec.tolerations.get_or_insert_default().extend(self.tolerations.iter().cloned());
        }
        if !self.gates.is_empty() {
            spec.scheduling_gates = Some(self.gates.clone());
        }
        if let Some(affinity) = &self.affinity {
            add_affinity(spec.affinity.get_or_insert_default(), affinity);
        }
        if let Some((slice, idx)) = self.slice.as_ref().zip(worker_idx(&pod)) {
            let affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
            require(affinity, slice.neighbours(idx));
        }
        Ok(pod)
    }

    /// Serializes a pod. The field that names Kubernetes' own PodGroup is added to the JSON, because the Rust
    /// types of pods do not have it yet.
    ///
    /// # Errors
    /// When a pod has no JSON form, which would be a bug.
    pub fn body(&self, pod: &Pod) -> Result<Vec<u8>, serde_json::Error> {
        let Some(group) = &self.group else { return serde_json::to_vec(pod) };
        let mut value = serde_json::to_value(pod)?;
        value["spec"]["schedulingGroup"] = json!({"podGroupName": group});
        serde_json::to_vec(&value)
    }
}

/// Returns the PodGroup API by which an existing pod belongs to the PodGroup `name`; `None` if it does not,
/// or if the cluster does not serve that API.
pub fn gang_of(pod: &DynamicObject, name: &str, served: Served) -> Option<Gang> {
    let is_named = |entries: Option<&BTreeMap<String, String>>, key: &str| {
        entries.and_then(|entries| entries.get(key)).is_some_and(|group| group == name)
    };
    let native = pod.data["spec"]["schedulingGroup"]["podGroupName"] == name;
    let volcano = served.has_volcano && is_named(pod.metadata.annotations.as_ref(), VOLCANO_ANNOTATION);
    let coscheduling = served.has_coscheduling && is_named(pod.metadata.labels.as_ref(), COSCHEDULING_LABEL);
    let native = served.native_groups.filter(|_| native).map(Gang::Native);
    native.or(volcano.then_some(Gang::Volcano)).or(coscheduling.then_some(Gang::Coscheduling))
}

/// Appends the pod affinity of `more` to the affinity that the pod has from its template.
fn add_affinity(own: &mut Affinity, more: &Affinity) {
    let Some(more) = more.pod_affinity.clone() else { return };
    let own = own.pod_affinity.get_or_insert_default();
    if let Some(terms) = more.required_during_scheduling_ignored_during_execution {
        own.required_during_scheduling_ignored_during_execution.get_or_insert_default().extend(terms);
    }
    if let Some(terms) = more.preferred_during_scheduling_ignored_during_execution {
        own.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().extend(terms);
    }
}

/// Returns labels that select all workers of a group in an attempt, and no other pod.
fn workers_of(input: &BuildInput<'_>, group: &WorkerGroup, attempt: u32) -> BTreeMap<String, String> {
    let job = (labels::JOB_UID.to_owned(), input.job.uid().to_owned());
    let has_others = input.prepared.plan.worker_groups.len() > 1;
    let group = has_others.then(|| (labels::WORKER_GROUP.to_owned(), group.name.clone()));
    [job, (labels::ATTEMPT.to_owned(), attempt.to_string())].into_iter().chain(group).collect()
}

fn worker_idx(pod: &Pod) -> Option<u32> {
    pod.metadata.labels.as_ref()?.get(labels::WORKER_IDX)?.parse().ok()
}

fn slice(input: &BuildInput<'_>, group: &WorkerGroup, attempt: u32) -> Option<Slice> {
    let slice = input.prepared.job.spec().workers.topology.as_ref()?.slice.as_ref()?;
    let workers = workers_of(input, group, attempt);
    Some(Slice { label: slice.required.clone(), size: slice.size, workers })
}

impl Slice {
    /// Returns the affinity of the worker `idx` to all workers of its slice.
    fn neighbours(&self, idx: u32) -> PodAffinityTerm {
        let first = idx - idx % self.size;
        let indices = (first..first + self.size).map(|idx| idx.to_string()).collect();
        let neighbours = LabelSelectorRequirement {
            key: labels::WORKER_IDX.into(),
            operator: "In".into(),
            values: Some(indices),
        };
        let selector = LabelSelector {
            match_labels: Some(self.workers.clone()),
            match_expressions: Some(vec![neighbours]),
        };
        PodAffinityTerm {
            label_selector: Some(selector),
            topology_key: self.label.clone(),
            ..PodAffinityTerm::default()
        }
    }
}

fn require(affinity: &mut Affinity, term: PodAffinityTerm) {
    let near = affinity.pod_affinity.get_or_insert_default();
    near.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(term);
}

/// Returns the affinity of the workers of one attempt to each other; `None` unless the job requests it.
fn affinity(input: &BuildInput<'_>, group: &WorkerGroup, attempt: u32) -> Option<Affinity> {
    let topology = input.prepared.job.spec().workers.topology.as_ref()?;
    if topology.required.is_none() && topology.preferred.is_none() {
        return None;
    }
    let workers = workers_of(input, group, attempt);
    let near = |key: &String| PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(workers.clone()),
            ..LabelSelector::default()
        }),
        topology_key: key.clone(),
        ..PodAffinityTerm::default()
    };
    let wish = |key| WeightedPodAffinityTerm { weight: WEIGHT, pod_affinity_term: near(key) };
    let pod_affinity = PodAffinity {
        required_during_scheduling_ignored_during_execution: topology
            .required
            .as_ref()
            .map(|key| vec![near(key)]),
        preferred_during_scheduling_ignored_during_execution: topology
            .preferred
            .as_ref()
            .map(|key| vec![wish(key)]),
    };
    Some(Affinity { pod_affinity: Some(pod_affinity), ..Affinity::default() })
}
