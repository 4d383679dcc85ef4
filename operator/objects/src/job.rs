//! The custom resource as the operator caches it. The specification stays JSON text, which saves memory and
//! accepts an invalid specification; `rlt_api::validate` parses it later.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use rlt_api::status::RLTrainingJobStatus;
use rlt_api::{Defaults, FailureCause, MergedSpec, RLTrainingJob};
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

/// Fields of a status whose values may be known only to a later release, such as a failure cause. The
/// operator can decide without such a value. Any other field must be readable.
const OPEN_FIELDS: [&str; 7] =
    ["phase", "conditions", "failuresByCause", "retriesUsed", "restartsInPlace", "evacuation", "lastFailure"];

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
    /// Status without the entries that only a later release knows, or the error in reading it.
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
        Some(value) => parse_status(value),
        None => no_status(),
    })
}

/// Parses a status. After a rollback, entries that only the later release knows are dropped.
fn parse_status(mut status: Value) -> Result<RLTrainingJobStatus, String> {
    RLTrainingJobStatus::deserialize(&status).or_else(|error| {
        remove_unreadable(&mut status);
        RLTrainingJobStatus::deserialize(&status).map_err(|_| error.to_string())
    })
}

/// Removes the entries of [`OPEN_FIELDS`] that cannot be read. A last failure with an unknown cause keeps its
/// other fields, with the cause `TrainerFailed`.
fn remove_unreadable(status: &mut Value) {
    let Some(status) = status.as_object_mut() else { return };
    if let Some(cause) = status.get_mut("lastFailure").and_then(|failure| failure.get_mut("cause"))
        && FailureCause::deserialize(&*cause).is_err()
    {
        *cause = json!(FailureCause::TrainerFailed);
    }
    for field in OPEN_FIELDS {
        let is_readable = |value: &Value| RLTrainingJobStatus::deserialize(&json!({field: value})).is_ok();
        let Some(value) = status.get_mut(field).filter(|value| !is_readable(value)) else { continue };
        match value {
            Value::Array(entries) => entries.retain(|entry| is_readable(&json!([entry]))),
            Value::Object(entries) => entries.retain(|name, entry| is_readable(&json!({name: entry}))),
            _ => {}
        }
        if !is_readable(value) {
            status.remove(field);
        }
    }
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

    /// Whether this operator manages the job, because `spec.managedBy` names no other controller. An
    /// unreadable specification names none.
    pub fn is_managed_here(&self) -> bool {
        let spec: Value = serde_json::from_str(&self.spec).unwrap_or_default();
        let controller = spec.get("managedBy").and_then(Value::as_str);
        controller.is_none_or(|controller| controller == labels::CONTROLLER)
    }

    /// Whether the specification suspends the job; `false` if it cannot be parsed.
    pub fn is_suspended(&self) -> bool {
        let spec: Value = serde_json::from_str(&self.spec).unwrap_or_default();
        spec.pointer("/runPolicy/suspend").and_then(Value::as_bool).unwrap_or(false)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rlt_api::status::ConditionType;

    use super::*;

    fn read(status: Value) -> Result<RLTrainingJobStatus, String> {
        let job: Job = serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status})).unwrap();
        job.status
    }

    fn condition(type_: &str) -> Value {
        json!({"type": type_, "status": "True", "lastTransitionTime": "t", "reason": "r", "message": ""})
    }

    #[test]
    fn a_status_of_a_later_release_is_read_without_the_entries_that_only_that_release_knows() {
        let failure = |cause: &str| {
            let time = "2026-01-01T00:00:00Z";
            json!({"attempt": 2, "cause": cause, "message": "m", "advice": "a", "time": time})
        };
        let later = json!({
            "attempt": 3, "phase": "Draining", "aLaterField": {"any": "value"}, "retriesSinceStep": 20,
            "conditions": [condition("PodsReady"), condition("Drained")],
            "failuresByCause": {"PeerLost": 2, "Drained": 1}, "retriesUsed": {"Drained": 1},
            "lastFailure": failure("Drained"),
        });
        let status = read(later).unwrap();
        assert_eq!((status.attempt, status.retries_since_step, status.phase), (Some(3), Some(20), None));
        let types: Vec<_> = status.conditions.iter().map(|condition| condition.type_).collect();
        assert_eq!(types, [ConditionType::PodsReady]);
        assert_eq!(status.failures_by_cause, BTreeMap::from([(FailureCause::PeerLost, 2)]));
        assert!(status.retries_used.is_empty());
        let last = status.last_failure.unwrap();
        assert_eq!((last.attempt, last.cause, &*last.message), (2, FailureCause::TrainerFailed, "m"));
        assert_eq!(read(json!({"lastFailure": {"cause": "Drained"}})).unwrap().last_failure, None);

        let known = json!({"phase": "Draining", "lastFailure": failure("PeerLost")});
        let failure = read(known).unwrap().last_failure;
        assert_eq!(failure.map(|failure| failure.cause), Some(FailureCause::PeerLost));
    }

    #[test]
    fn a_status_whose_counters_cannot_be_read_is_an_error() {
        assert!(read(json!({"attempt": "three", "phase": "Draining"})).is_err());
        assert!(read(json!("later")).is_err());
        assert_eq!(read(Value::Null), Ok(RLTrainingJobStatus::default()));
    }
}
