//! Helm metadata for objects of the chart that the operator recreates: its Lease and the Secret of the status
//! channel.
//!
//! A recreated object gets the labels and annotations that the chart gave the original. Without these, Helm
//! would neither install over the object nor uninstall it. The operator does not own these fields, because a
//! release with other values would conflict with it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde_json::Value;

use crate::labels::{MANAGED_BY, OPERATOR};

/// Labels of every object of a release.
const LABELS: [&str; 5] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    MANAGED_BY,
    "helm.sh/chart",
];
/// Annotations by which Helm recognises the objects of its release.
const ANNOTATIONS: [&str; 2] = ["meta.helm.sh/release-name", "meta.helm.sh/release-namespace"];

/// Returns metadata for the object `name`, with the release's labels and annotations of `sibling`, an object
/// of the chart that the operator never creates.
pub fn copy_from(sibling: &ObjectMeta, name: &str) -> ObjectMeta {
    let labels = of_release(sibling.labels.as_ref(), &LABELS);
    let annotations = of_release(sibling.annotations.as_ref(), &ANNOTATIONS);
    ObjectMeta { name: Some(name.to_owned()), labels, annotations, ..ObjectMeta::default() }
}

fn of_release(entries: Option<&BTreeMap<String, String>>, keys: &[&str]) -> Option<BTreeMap<String, String>> {
    let kept = entries?.iter().filter(|(key, _)| keys.contains(&key.as_str()));
    let kept: BTreeMap<String, String> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    Some(kept).filter(|kept| !kept.is_empty())
}

/// Removes the metadata from the fields that the operator owns. Returns whether it owned any; if so, the
/// object must be replaced.
pub fn disown(metadata: &mut ObjectMeta) -> bool {
    let mut owned_any = false;
    for entry in metadata.managed_fields.iter_mut().flatten() {
        let is_own = entry.manager.as_deref() == Some(OPERATOR);
        if let Some(FieldsV1(Value::Object(fields))) = &mut entry.fields_v1
            && is_own
        {
            owned_any |= fields.remove("f:metadata").is_some();
        }
    }
    owned_any
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_that_is_created_again_has_the_release_of_its_sibling_and_nothing_else() {
        let labels = json!({
            "app.kubernetes.io/name": "rl-operator", "app.kubernetes.io/instance": "rl",
            "app.kubernetes.io/version": "0.1.0", "app.kubernetes.io/managed-by": "Helm",
            "helm.sh/chart": "rl-operator-0.1.0",
        });
        let annotations =
            json!({"meta.helm.sh/release-name": "rl", "meta.helm.sh/release-namespace": "operators"});
        let mut sibling: ObjectMeta = serde_json::from_value(json!({
            "name": "rl-operator-channel", "uid": "1", "resourceVersion": "7",
            "labels": labels, "annotations": annotations,
        }))
        .unwrap();
        let foreign = ("argocd.argoproj.io/tracking-id".to_owned(), "rl:/Service:rl/channel".to_owned());
        sibling.labels.get_or_insert_default().insert("team".to_owned(), "rl".to_owned());
        sibling.annotations.get_or_insert_default().extend([foreign]);
        let wanted = json!({"name": "rl-operator", "labels": labels, "annotations": annotations});
        assert_eq!(serde_json::to_value(copy_from(&sibling, "rl-operator")).unwrap(), wanted);
        let bare = copy_from(&ObjectMeta::default(), "rl-operator");
        assert_eq!(serde_json::to_value(bare).unwrap(), json!({"name": "rl-operator"}));
    }

    #[test]
    fn metadata_is_disowned_once_and_other_fields_and_managers_stay() {
        let entry = |owner: &str, fields: Value| {
            json!({
                "manager": owner, "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        };
        let (data, labels) = (json!({"f:tls.crt": {}}), json!({"f:labels": {"f:helm.sh/chart": {}}}));
        let of_helm = entry("helm", json!({"f:metadata": labels}));
        let own = entry(OPERATOR, json!({"f:data": data, "f:metadata": labels, "f:type": {}}));
        let mut metadata: ObjectMeta =
            serde_json::from_value(json!({"managedFields": [of_helm, own]})).unwrap();
        assert!(disown(&mut metadata));
        let disowned = entry(OPERATOR, json!({"f:data": data, "f:type": {}}));
        let wanted = json!({"managedFields": [of_helm, disowned]});
        assert_eq!(serde_json::to_value(&metadata).unwrap(), wanted);
        assert!(!disown(&mut metadata) && !disown(&mut ObjectMeta::default()));
    }
}
