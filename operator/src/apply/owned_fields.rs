//! Field ownership of objects that the operator created by POST. The API server records their fields under
//! the operation `Update`, so a later server-side apply would not remove fields that it no longer sends.
//! Before the first apply, the operator moves its fields to the operation `Apply`, as client-go's
//! `csaupgrade` does.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::Api;
use kube::api::Patch;
use rlt_objects::labels;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ApplyError, merge_patch};

/// Moves the operator's fields of an object from the operation `Update` to `Apply`. Does nothing if the
/// object is gone.
pub(super) async fn take_over<K>(api: &Api<K>, name: &str) -> Result<(), ApplyError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let call = |act| move |source| ApplyError::Call { act, name: name.to_owned(), source };
    let Some(found) = api.get_metadata_opt(name).await.map_err(call("read"))? else { return Ok(()) };
    let metadata = found.metadata;
    let Some(applied) = as_applied(metadata.managed_fields.as_deref().unwrap_or_default()) else {
        return Ok(());
    };
    let patch = json!({"metadata": {
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "managedFields": applied,
    }});
    api.patch_metadata(name, &merge_patch(), &Patch::Merge(patch)).await.map_err(call("change"))?;
    Ok(())
}

/// Returns the entries with the operator's entries of `Update` merged into its entry of `Apply`; `None` if
/// the operator has no entry of `Update`.
fn as_applied(entries: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let is_ours = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.manager.as_deref() == Some(labels::OPERATOR)
            && entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let (updated, mut kept): (Vec<_>, Vec<_>) =
        entries.iter().cloned().partition(|entry| is_ours(entry, "Update"));
    let mut updated = updated.into_iter();
    let first = updated.next()?;
    let applied = match kept.iter().position(|entry| is_ours(entry, "Apply")) {
        Some(idx) => kept.remove(idx),
        None => ManagedFieldsEntry {
            operation: Some("Apply".into()),
            fields_v1: Some(FieldsV1(json!({}))),
            ..first.clone()
        },
    };
    let mut fields = applied.fields_v1.clone().map_or_else(|| json!({}), |fields| fields.0);
    for entry in std::iter::once(first).chain(updated) {
        if let Some(FieldsV1(more)) = entry.fields_v1 {
            union(&mut fields, more);
        }
    }
    kept.push(ManagedFieldsEntry { fields_v1: Some(FieldsV1(fields)), ..applied });
    Some(kept)
}

/// Adds the field set `more` to `fields`.
fn union(fields: &mut Value, more: Value) {
    match (fields, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, below) in more {
                union(fields.entry(name).or_insert_with(|| json!({})), below);
            }
        }
        (fields, more) => *fields = more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(value: Value) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn created_fields_become_applied_ones_and_those_of_others_stay() {
        let own = |operation: &str, fields: Value| {
            json!({
                "manager": labels::OPERATOR, "operation": operation, "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        };
        let other = json!({"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:a": {}}}});
        let created = json!({"f:metadata": {"f:annotations": {"f:role": {}}}});
        let taken = as_applied(&entries(json!([other, own("Update", created.clone())])));
        assert_eq!(taken, Some(entries(json!([other, own("Apply", created.clone())]))));
        let applied = json!({"f:metadata": {"f:annotations": {"f:digest": {}}}});
        let both = json!({"f:metadata": {"f:annotations": {"f:role": {}, "f:digest": {}}}});
        let taken = as_applied(&entries(json!([own("Apply", applied), other, own("Update", created)])));
        assert_eq!(taken, Some(entries(json!([other, own("Apply", both)]))));
    }

    #[test]
    fn an_object_without_updates_of_the_operator_is_left_as_it_is() {
        let of_status = json!({
            "manager": labels::OPERATOR, "operation": "Update", "subresource": "status",
            "fieldsV1": {"f:status": {}},
        });
        assert_eq!(as_applied(&entries(json!([of_status]))), None);
        assert_eq!(as_applied(&[]), None);
    }
}
