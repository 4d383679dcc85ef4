//! Custom resource as the operator caches it: small, and readable with any specification; only
//! `rlt_api::validate` parses that.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use rlt_api::status::RLTrainingJobStatus;
use rlt_api::{Defaults, MergedSpec, RLTrainingJob};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::labels;
use crate::seen::lean;
use crate::worker::JobKey;

/// Labels and annotations of Argo CD and Flux, which would create a deleted job again.
const TRACKING: [&str; 4] = [
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
];

/// An RLTrainingJob as the API server sends it.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "RLTrainingJob")]
pub struct Job {
    /// Name, namespace, UID, generation and labels, without managed fields.
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    /// Specification as JSON text, which takes a tenth of the memory of its parsed form.
    #[serde(default, deserialize_with = "as_text")]
    pub spec: String,
    /// Status, or the error in reading it.
    #[serde(default = "no_status", deserialize_with = "read_status")]
    pub status: Result<RLTrainingJobStatus, String>,
}

fn as_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let mut text = Value::deserialize(deserializer)?.to_string();
    text.shrink_to_fit();
    Ok(text)
}

fn no_status() -> Result<RLTrainingJobStatus, String> {
    Ok(RLTrainingJobStatus::default())
}

fn read_status<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Result<RLTrainingJobStatus, String>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    Ok(match value {
        Some(value) => serde_json::from_value(value).map_err(|error| error.to_string()),
        None => no_status(),
    })
}

impl Job {
    /// Name of the job.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Namespace of the job.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// UID of the job.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Key of the job in the index.
    pub fn key(&self) -> JobKey {
        JobKey { uid: self.uid().into(), namespace: self.namespace().into(), name: self.name().into() }
    }

    /// Generation of the job, which grows with every change of its specification.
    pub fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// Version of the object in the API server's store.
    pub fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// Returns the owner reference of the job's children.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: rlt_api::API_VERSION.into(),
            kind: rlt_api::KIND.into(),
            name: self.name().into(),
            uid: self.uid().into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// Whether a GitOps controller would create the job again after its deletion.
    pub fn is_tracked(&self) -> bool {
        let labels = self.metadata.labels.iter().flatten();
        let mut marks = labels.chain(self.metadata.annotations.iter().flatten()).map(|(name, _)| name);
        marks.any(|name| TRACKING.contains(&name.as_str()))
    }

    /// Returns the job as a manifest, for `rlt_api::validate`.
    pub fn manifest(&self) -> String {
        self.manifest_of(if self.spec.is_empty() { "{}" } else { &self.spec })
    }

    /// Whether the specification names no other controller, as far as it can be parsed.
    pub fn is_managed_here(&self) -> bool {
        let spec: Value = serde_json::from_str(&self.spec).unwrap_or_default();
        let controller = spec.get("managedBy").and_then(Value::as_str);
        controller.is_none_or(|controller| controller == labels::CONTROLLER)
    }

    /// Merges the specification over the defaults of its namespace and cluster.
    pub fn merged_spec(&self, namespace: Option<&Defaults>, cluster: Option<&Defaults>) -> MergedSpec {
        let spec = serde_json::from_str(&self.spec).unwrap_or_else(|_| json!({}));
        rlt_api::merge(&spec, namespace, cluster)
    }

    /// Returns the manifest with the specification merged over the defaults of its namespace and cluster.
    pub fn manifest_over(&self, namespace: Option<&Defaults>, cluster: Option<&Defaults>) -> String {
        self.manifest_of(&self.merged_spec(namespace, cluster).spec.to_string())
    }

    fn manifest_of(&self, spec: &str) -> String {
        let (name, namespace) = (Value::from(self.name()), Value::from(self.namespace()));
        let (version, kind) = (rlt_api::API_VERSION, rlt_api::KIND);
        format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":{name},"namespace":{namespace}}},"spec":{spec}}}"#
        )
    }
}
