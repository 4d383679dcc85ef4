//! Cached fields of a Workload: those on which decisions depend, and those that are copied into pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Toleration;
use kube::core::DynamicObject;
use serde::Deserialize;

use crate::labels;
use crate::worker::{Explanation, JobKey, owner};

/// Label with the host name of a node. A topology with this label as its lowest level assigns single nodes.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Workload of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Name of the Workload.
    pub name: String,
    /// UID of the Workload.
    pub uid: String,
    /// Version of the object in the API server's store.
    pub resource_version: String,
    /// Name of the queue in which the Workload is.
    pub queue: String,
    /// Digest of the Workload's content, from an annotation.
    pub digest: Option<String>,
    /// Nodes that the Workload excludes, from an annotation.
    pub excluded_nodes: BTreeSet<String>,
    /// Whether the Workload has a deletion timestamp.
    pub is_deleting: bool,
    /// Error in reading the Workload's status; if there is one, the following fields have defaults.
    pub unreadable: Option<String>,
    /// Whether quota is reserved for the Workload.
    pub has_quota: bool,
    /// Whether Kueue has admitted the Workload.
    pub is_admitted: bool,
    /// Whether the Workload has the condition `Finished`.
    pub is_finished: bool,
    /// Whether the Workload has the condition `PodsReady`.
    pub is_ready: bool,
    /// Reason of the Workload's eviction; `None` if it is not evicted.
    pub eviction: Option<Explanation>,
    /// Kueue's message that says why the Workload waits for quota.
    pub waiting: String,
    /// Flavors that are assigned to the Workload's pod sets.
    pub assignments: Vec<Assignment>,
    /// Fields that admission checks add to pods.
    pub updates: Vec<PodSetUpdate>,
}

/// Flavors and topology that are assigned to a pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the pod set.
    pub name: String,
    /// Names of the assigned flavors.
    pub flavors: BTreeSet<String>,
    /// Whether Kueue chooses the nodes (topology-aware scheduling).
    pub has_topology: bool,
    /// Whether the assignment names single nodes, by their host names.
    pub has_hostnames: bool,
}

/// Fields that an admission check adds to the pods of a set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetUpdate {
    /// Name of the pod set.
    pub name: String,
    /// Labels to add.
    pub labels: BTreeMap<String, String>,
    /// Annotations to add.
    pub annotations: BTreeMap<String, String>,
    /// Node labels that the pods require.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    pub tolerations: Vec<Toleration>,
}

// Tolerations have no floating-point fields, so comparison is an equivalence.
impl Eq for PodSetUpdate {}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    admission: Option<Admission>,
    admission_checks: Vec<Check>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Admission {
    pod_set_assignments: Vec<PodSetAssignment>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSetAssignment {
    name: String,
    flavors: BTreeMap<String, String>,
    topology_assignment: Option<serde_json::Value>,
    delayed_topology_request: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Check {
    pod_set_updates: Vec<PodSetUpdate>,
}

impl Workload {
    /// Whether the Workload holds quota, or may hold it because its status cannot be read.
    pub fn holds_place(&self) -> bool {
        let may_have_quota = self.has_quota || self.unreadable.is_some();
        may_have_quota && !self.is_finished && !self.is_deleting
    }

    /// Reads a Workload and the key of the job that owns it. `None` if it belongs to no job of this operator.
    pub fn read(object: &DynamicObject) -> Option<(JobKey, Self)> {
        let metadata = &object.metadata;
        let key = owner(metadata)?;
        let status = object.data.get("status").cloned().map(serde_json::from_value::<Status>);
        let (status, unreadable) = match status {
            Some(Ok(status)) => (status, None),
            Some(Err(error)) => (Status::default(), Some(error.to_string())),
            None => (Status::default(), None),
        };
        let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let holds = |type_: &str| condition(type_).filter(|condition| condition.status == "True");
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
        let excluded_nodes = annotation(labels::EXCLUDED_NODES).into_iter();
        let workload = Self {
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            queue: object.data["spec"]["queueName"].as_str().unwrap_or_default().to_owned(),
            digest: annotation(labels::CONTENT_DIGEST).cloned(),
            excluded_nodes: excluded_nodes.flat_map(|names| names.split(',')).map(str::to_owned).collect(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            unreadable,
            has_quota: holds("QuotaReserved").is_some(),
            is_admitted: holds("Admitted").is_some(),
            is_finished: holds("Finished").is_some(),
            is_ready: holds("PodsReady").is_some(),
            eviction: holds("Evicted").map(|evicted| Explanation {
                reason: evicted.reason.clone(),
                message: evicted.message.clone(),
            }),
            waiting: condition("QuotaReserved").map(|reserved| reserved.message.clone()).unwrap_or_default(),
            assignments: status.admission.unwrap_or_default().pod_set_assignments.iter().map(read).collect(),
            updates: status.admission_checks.into_iter().flat_map(|check| check.pod_set_updates).collect(),
        };
        Some((key, workload))
    }
}

fn read(assignment: &PodSetAssignment) -> Assignment {
    let topology = assignment.topology_assignment.as_ref();
    let lowest_level = topology.and_then(|topology| topology["levels"].as_array()?.last());
    Assignment {
        name: assignment.name.clone(),
        flavors: assignment.flavors.values().cloned().collect(),
        has_topology: topology.is_some() || assignment.delayed_topology_request.is_some(),
        has_hostnames: lowest_level.is_some_and(|level| *level == HOSTNAME_LABEL),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_assignments_and_updates_are_read_and_nothing_else_is_kept() {
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "name": "w", "namespace": "team", "uid": "1", "resourceVersion": "7",
                "annotations": {labels::CONTENT_DIGEST: "d"},
                "ownerReferences": [{
                    "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "job", "uid": "u",
                }],
            },
            "spec": {"queueName": "q"},
            "status": {
                "conditions": [
                    {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "yes"},
                    {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""},
                    {"type": "Evicted", "status": "False", "reason": "Preempted", "message": "before"},
                ],
                "admission": {"clusterQueue": "c", "podSetAssignments": [
                    {"name": "trainer", "flavors": {"cpu": "spot", "memory": "spot"}, "count": 2},
                ]},
                "admissionChecks": [{"name": "check", "state": "Ready", "podSetUpdates": [
                    {"name": "trainer", "nodeSelector": {"zone": "a"}},
                ]}],
            },
        });
        let (key, workload) = Workload::read(&serde_json::from_value(object).unwrap()).unwrap();
        assert_eq!((&*key.name, &*key.uid), ("job", "u"));
        assert!(workload.has_quota && workload.is_admitted && !workload.is_finished && !workload.is_ready);
        assert_eq!(workload.eviction, None);
        assert_eq!(workload.assignments[0].flavors, ["spot".to_owned()].into());
        assert!(!workload.assignments[0].has_topology);
        assert_eq!(workload.updates[0].node_selector["zone"], "a");
        assert_eq!((workload.queue.as_str(), workload.digest.as_deref()), ("q", Some("d")));
        assert_eq!(workload.unreadable, None);
    }

    #[test]
    fn single_nodes_are_assigned_where_the_lowest_level_of_the_topology_is_the_host_name() {
        let read = |levels: serde_json::Value| {
            let assignment =
                json!({"name": "trainer", "topologyAssignment": {"levels": levels, "slices": []}});
            let object = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {
                    "name": "w", "namespace": "team", "uid": "1",
                    "annotations": {labels::EXCLUDED_NODES: "a,b"},
                    "ownerReferences": [{
                        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "job", "uid": "u",
                    }],
                },
                "status": {"admission": {"clusterQueue": "c", "podSetAssignments": [assignment]}},
            });
            let workload = Workload::read(&serde_json::from_value(object).unwrap()).unwrap().1;
            assert_eq!(workload.excluded_nodes, ["a".to_owned(), "b".to_owned()].into());
            (workload.assignments[0].has_topology, workload.assignments[0].has_hostnames)
        };
        assert_eq!(read(json!(["rack", "kubernetes.io/hostname"])), (true, true));
        assert_eq!(read(json!(["kubernetes.io/hostname", "rack"])), (true, false));
    }

    #[test]
    fn an_unreadable_status_is_reported_and_a_missing_one_is_not() {
        let read = |status: Option<serde_json::Value>| {
            let mut object = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"name": "w", "namespace": "team", "uid": "1", "ownerReferences": [
                    {"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "job", "uid": "u"},
                ]},
            });
            if let Some(status) = status {
                object["status"] = status;
            }
            Workload::read(&serde_json::from_value(object).unwrap()).unwrap().1
        };
        assert_eq!(read(None).unreadable, None);
        let unreadable = read(Some(json!({"conditions": {"Admitted": true}}))).unreadable.unwrap();
        assert!(unreadable.contains("expected a sequence"), "{unreadable}");
    }
}
