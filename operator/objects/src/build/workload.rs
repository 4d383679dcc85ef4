//! Workload with which Kueue admits a job: how many pods of which size, for which queue. Fields that do not
//! concern a queue, such as an image, are left out, so that an upgrade of the operator does not replace the
//! Workload.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use kube::core::DynamicObject;
use rlt_api::spec::TopologySpec;
use rlt_plan::WorkerGroup;
use serde_json::{Value, json};

use super::{BuildInput, avoidance, digest};
use crate::labels;
use crate::queue::{self, PRIORITY_LABEL};
use crate::served;

/// Label with which Kueue finds the Workload of an object.
const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";

/// Reference to the priority class of a job in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    /// API group of the class.
    pub group: &'static str,
    /// Kind of the class.
    pub kind: &'static str,
    /// Name of the class.
    pub name: String,
}

/// Returns the priority class of a job in its queue: that of its label, by default that of its pods; `None`
/// without either.
pub fn queue_priority_class(input: &BuildInput<'_>) -> Option<PriorityClass> {
    if let Some(name) = queue::label(input.job, PRIORITY_LABEL) {
        let (group, kind) = ("kueue.x-k8s.io", "WorkloadPriorityClass");
        return Some(PriorityClass { group, kind, name: name.to_owned() });
    }
    let name = input.prepared.job.spec().workers.priority_class_name.clone()?;
    Some(PriorityClass { group: "scheduling.k8s.io", kind: "PriorityClass", name })
}

/// Returns the digest of a Workload's specification, without the value of its priority class.
pub fn workload_digest(input: &BuildInput<'_>, queue: &str, excluded_nodes: &[String]) -> String {
    digest([spec(input, queue, excluded_nodes).to_string().as_str()])
}

/// Returns the Workload of a job in a queue, with the value of its priority class if it has one. Kueue places
/// its pods on none of the excluded nodes.
pub fn workload(
    input: &BuildInput<'_>,
    queue: &str,
    priority: Option<i32>,
    excluded_nodes: &[String],
) -> DynamicObject {
    let uid = input.job.uid();
    let name = format!("{}-{}", input.name(), &digest([uid])[..5]);
    let mut metadata = input.metadata(name);
    metadata.labels = Some(workload_labels(input));
    let digest = (labels::CONTENT_DIGEST.to_owned(), workload_digest(input, queue, excluded_nodes));
    let excluded = (labels::EXCLUDED_NODES.to_owned(), excluded_nodes.join(","));
    let excluded = (!excluded_nodes.is_empty()).then_some(excluded);
    metadata.annotations = Some([digest].into_iter().chain(excluded).collect());
    let mut spec = spec(input, queue, excluded_nodes);
    if let Some(priority) = priority {
        spec["priority"] = priority.into();
    }
    let object = DynamicObject::new("", &served::workloads()).data(json!({"spec": spec}));
    DynamicObject { metadata, ..object }
}

/// Returns the labels of a job's Workload.
pub fn workload_labels(input: &BuildInput<'_>) -> BTreeMap<String, String> {
    let mut labels = labels::of_job(input.job);
    labels.insert(JOB_UID_LABEL.into(), input.job.uid().into());
    labels
}

fn spec(input: &BuildInput<'_>, queue: &str, excluded_nodes: &[String]) -> Value {
    let groups = input.prepared.plan.worker_groups.iter();
    let pod_sets: Vec<_> = groups
        .map(|group| {
            let mut set = json!({
                "name": group.name, "count": group.num_workers,
                "template": template(input, group, excluded_nodes),
            });
            // Kueue packs each pod set separately: packed spares would not be near the workers.
            if let Some(topology) =
                input.prepared.job.spec().workers.topology.as_ref().filter(|_| !group.is_spare())
            {
                set["topologyRequest"] = topology_request(topology);
            }
            set
        })
        .collect();
    let mut spec = json!({"queueName": queue, "podSets": pod_sets});
    if let Some(PriorityClass { group, kind, name }) = queue_priority_class(input) {
        spec["priorityClassRef"] = json!({"group": group, "kind": kind, "name": name});
    }
    spec
}

/// Returns the topology request of a pod set. Kueue assigns nodes in the order of the pod index, so that
/// consecutive ranks are close together.
fn topology_request(topology: &TopologySpec) -> Value {
    let mut request = json!({});
    for (name, label) in [("required", &topology.required), ("preferred", &topology.preferred)] {
        if let Some(label) = label {
            request[name] = label.as_str().into();
        }
    }
    request["podIndexLabel"] = labels::WORKER_IDX.into();
    if let Some(slice) = &topology.slice {
        request["podSetSliceRequiredTopology"] = slice.required.as_str().into();
        request["podSetSliceSize"] = slice.size.into();
    }
    request
}

/// Returns the fields of a group's pods that determine where they fit. A limit without a request counts as
/// the request, as Kubernetes does for pods.
fn template(input: &BuildInput<'_>, group: &WorkerGroup, excluded_nodes: &[String]) -> PodTemplateSpec {
    let pod = super::pod(input, 1, group, 0).spec.unwrap_or_default();
    let container = |container: Container| {
        let resources = container.resources.unwrap_or_default();
        let mut requests = resources.limits.clone().unwrap_or_default();
        requests.extend(resources.requests.unwrap_or_default());
        let resources = ResourceRequirements {
            requests: Some(requests),
            claims: resources.claims,
            ..ResourceRequirements::default()
        };
        Container {
            name: container.name,
            resources: Some(resources),
            // A sidecar is an init container with a restart policy. Kueue counts its resources for the whole
            // life of the pod.
            restart_policy: container.restart_policy,
            ..Container::default()
        }
    };
    let spec = PodSpec {
        containers: pod.containers.into_iter().map(container).collect(),
        init_containers: pod.init_containers.map(|all| all.into_iter().map(container).collect()),
        resource_claims: pod.resource_claims,
        affinity: avoidance::exclude(pod.affinity, excluded_nodes),
        topology_spread_constraints: pod.topology_spread_constraints,
        node_selector: pod.node_selector,
        tolerations: pod.tolerations,
        priority_class_name: pod.priority_class_name,
        runtime_class_name: pod.runtime_class_name,
        restart_policy: pod.restart_policy,
        ..PodSpec::default()
    };
    PodTemplateSpec { metadata: None, spec: Some(spec) }
}
