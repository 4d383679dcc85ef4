//! PodGroup of a group of workers in one attempt: its scheduler places all of them, or none. Each attempt has
//! its own PodGroup, so that terminating pods of an earlier attempt do not count.

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_plan::WorkerGroup;
use serde_json::{Value, json};

use super::{BuildInput, within_label};
use crate::labels;
use crate::queue;
use crate::served::Served;

/// Name of Volcano's scheduler.
const VOLCANO: &str = "volcano";
/// Name of Kubernetes' default scheduler.
const DEFAULT: &str = "default-scheduler";
/// Label with which a job selects a queue of Volcano.
const VOLCANO_QUEUE_LABEL: &str = "volcano.sh/queue-name";

/// API of a PodGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// Kubernetes' own PodGroup, in this version.
    Native(&'static str),
    /// PodGroup of Volcano's scheduler.
    Volcano,
    /// PodGroup of the coscheduling plugin from scheduler-plugins.
    Coscheduling,
}

/// Returns the PodGroup API for a group of workers: that of its scheduler, if the cluster serves it. A single
/// worker needs none.
pub fn gang(input: &BuildInput<'_>, group: &WorkerGroup, served: Served) -> Option<Gang> {
    if group.num_workers <= 1 || group.is_spare() {
        return None;
    }
    let native = served.native_groups.map(Gang::Native);
    let coscheduling = served.has_coscheduling.then_some(Gang::Coscheduling);
    match input.prepared.job.spec().workers.scheduler_name.as_deref() {
        Some(VOLCANO) => served.has_volcano.then_some(Gang::Volcano),
        None | Some(DEFAULT) => native.or(coscheduling),
        Some(_) => coscheduling.or(native),
    }
}

/// Returns the name of the PodGroup of a group of workers in an attempt, which is also the value of a label.
pub fn pod_group_name(group: &WorkerGroup, attempt: u32) -> String {
    within_label(&format!("{}-{attempt}", group.service_name()))
}

/// Returns the API resource of a PodGroup.
pub fn pod_group_kind(gang: Gang) -> ApiResource {
    let (group, version) = match gang {
        Gang::Native(version) => ("scheduling.k8s.io", version),
        Gang::Volcano => ("scheduling.volcano.sh", "v1beta1"),
        Gang::Coscheduling => ("scheduling.x-k8s.io", "v1alpha1"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup"))
}

/// Returns the PodGroup of a group of workers in an attempt.
pub fn pod_group(input: &BuildInput<'_>, group: &WorkerGroup, gang: Gang, attempt: u32) -> DynamicObject {
    let mut metadata = input.metadata_of(group, pod_group_name(group, attempt));
    metadata.labels.get_or_insert_default().insert(labels::ATTEMPT.into(), attempt.to_string());
    let num_workers = group.num_workers;
    let mut spec = match gang {
        Gang::Native(_) => native(input, num_workers),
        Gang::Volcano => volcano(input, num_workers),
        Gang::Coscheduling => json!({"minMember": num_workers}),
    };
    if let (Gang::Native(_) | Gang::Volcano, Some(class)) =
        (gang, &input.prepared.job.spec().workers.priority_class_name)
    {
        spec["priorityClassName"] = class.as_str().into();
    }
    let object = DynamicObject::new("", &pod_group_kind(gang)).data(json!({"spec": spec}));
    DynamicObject { metadata, ..object }
}

fn native(input: &BuildInput<'_>, num_workers: u32) -> Value {
    let mut spec = json!({"schedulingPolicy": {"gang": {"minCount": num_workers}}});
    let topology = input.prepared.job.spec().workers.topology.as_ref();
    if let Some(key) = topology.and_then(|topology| topology.required.as_deref()) {
        spec["schedulingConstraints"] = json!({"topology": [{"key": key}]});
    }
    spec
}

fn volcano(input: &BuildInput<'_>, num_workers: u32) -> Value {
    let mut spec = json!({"minMember": num_workers});
    if let Some(queue) = queue::label(input.job, VOLCANO_QUEUE_LABEL) {
        spec["queue"] = queue.into();
    }
    if let Some(topology) = &input.prepared.job.spec().workers.topology {
        let hard = topology.required.as_ref().map(|tier| ("hard", tier));
        if let Some((mode, tier)) = hard.or(topology.preferred.as_ref().map(|tier| ("soft", tier))) {
            spec["networkTopology"] = json!({"mode": mode, "highestTierName": tier});
        }
    }
    spec
}
