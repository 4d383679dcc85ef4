//! Objects of the API server, reduced to the fields that the operator reads. A pod's `managedFields` alone
//! are longer than all of these fields.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// Fields of a pod from which a worker is read.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = "Pod")]
pub struct SeenPod {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    /// Fields of the specification that are read.
    #[serde(default)]
    pub spec: SeenPodSpec,
    /// Full status of the pod.
    #[serde(default)]
    pub status: PodStatus,
}

/// Fields of a pod's specification that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeenPodSpec {
    /// Node on which the pod is scheduled.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Containers of the pod, sidecars included.
    #[serde(default)]
    pub containers: Vec<SeenContainer>,
}

/// Fields of a container's specification that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SeenContainer {
    /// Name of the container.
    #[serde(default)]
    pub name: String,
    /// Image of the container, as the API server stores it.
    #[serde(default)]
    pub image: Option<String>,
}

/// Metadata of a `K`, the only part that is requested from the API server.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct SeenMetadata<K> {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource<Scope = NamespaceResourceScope>> Resource for SeenMetadata<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(kind: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Deserializes metadata without its managed fields, for which no memory is allocated.
///
/// # Errors
/// The input is not the metadata of an object.
pub fn lean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let lean = LeanMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: lean.name,
        namespace: lean.namespace,
        uid: lean.uid,
        resource_version: lean.resource_version,
        generation: lean.generation,
        labels: lean.labels,
        annotations: lean.annotations,
        owner_references: lean.owner_references,
        creation_timestamp: lean.creation_timestamp,
        deletion_timestamp: lean.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

/// Parses a resource version, which grows with each change within one kind of object; 0 if it is no number.
pub fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read_with_all_fields_that_a_worker_needs_and_without_managed_fields() {
        let sent = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
                "labels": {"app": "trainer"}, "annotations": {"digest": "f00d"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "o", "uid": "u"}],
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i", "tty": true}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        let lean: SeenPod = serde_json::from_value(sent.clone()).unwrap();
        let whole: Pod = serde_json::from_value(sent).unwrap();
        assert_eq!(lean.metadata, ObjectMeta { managed_fields: None, ..whole.metadata });
        assert_eq!(Some(lean.status), whole.status);
        let image = Some("i".to_owned());
        assert_eq!(lean.spec.containers, [SeenContainer { name: "main".into(), image }]);
        assert_eq!(lean.spec.node_name, whole.spec.unwrap().node_name);
    }

    #[test]
    fn metadata_alone_is_asked_for_under_the_name_of_its_kind() {
        assert!(SeenMetadata::<ConfigMap>::metadata_api());
        assert_eq!(SeenMetadata::<ConfigMap>::url_path(&(), Some("b")), "/api/v1/namespaces/b/configmaps");
        assert_eq!(SeenPod::url_path(&(), Some("b")), "/api/v1/namespaces/b/pods");
    }
}
