//! Changes of an existing claim. A change of the owner and a larger size are applied. A change that the API
//! server would refuse is refused here, with a message that names the field to change.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::Patch;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{ApplyError, error, merge_patch};

/// Access mode of a claim that workers on several nodes mount.
const SEVERAL_WORKERS: &str = "ReadWriteMany";

/// Changes the existing claim to the `wanted` one. Returns whether the claim exists and was changed. A claim
/// without a volume cannot grow yet, and may get its volume only when a pod mounts it. It is changed once it
/// has one.
pub(super) async fn change(
    client: &Client,
    namespace: &str,
    wanted: &PersistentVolumeClaim,
) -> Result<bool, ApplyError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let name = wanted.metadata.name.clone().unwrap_or_default();
    // The claim was deleted. The watch reports this, and the claim is created again.
    let Some(found) = read(&api, &name).await? else { return Ok(false) };
    if let Some(why) = misfit(&found, wanted) {
        release(&api, &found, wanted).await?;
        return Err(ApplyError::Unfit { message: format!("claim {name}: {why}") });
    }
    if is_pending(&found) && grows(&found, wanted) {
        adopt(&api, &found, wanted).await?;
        return Ok(false);
    }
    match api.patch(&name, &merge_patch(), &Patch::Merge(patch(&found, wanted))).await {
        Ok(_) => Ok(true),
        Err(source) => {
            // A claim that is to be retained must be released even if, for example, its volume cannot grow.
            if error::refusal(&source).is_some() {
                release(&api, &found, wanted).await?;
            }
            Err(ApplyError::Call { act: "change", name, source })
        }
    }
}

/// Whether the claim outlives its job.
pub(super) fn is_retained(wanted: &PersistentVolumeClaim) -> bool {
    wanted.metadata.owner_references.iter().flatten().next().is_none()
}

/// Releases the existing claim from a job that is about to be deleted, if the claim is to be retained.
/// Garbage collection would delete it with the job.
pub(super) async fn retain(
    client: &Client,
    namespace: &str,
    wanted: &PersistentVolumeClaim,
) -> Result<(), ApplyError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let released = match read(&api, wanted.metadata.name.as_deref().unwrap_or_default()).await {
        Ok(Some(found)) => release(&api, &found, wanted).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    released.map_err(|error| match error {
        ApplyError::Call { name, source, .. } => {
            ApplyError::Call { act: "release, before the job is deleted, its claim", name, source }
        }
        other => other,
    })
}

async fn read(
    api: &Api<PersistentVolumeClaim>,
    name: &str,
) -> Result<Option<PersistentVolumeClaim>, ApplyError> {
    let found = api.get_opt(name).await;
    found.map_err(|source| ApplyError::Call { act: "read", name: name.to_owned(), source })
}

/// Makes the job the owner of a claim whose size cannot be changed yet. The claim keeps its old digest, so
/// that a later reconcile changes the size.
async fn adopt(
    api: &Api<PersistentVolumeClaim>,
    found: &PersistentVolumeClaim,
    wanted: &PersistentVolumeClaim,
) -> Result<(), ApplyError> {
    let owners = owners(found, wanted);
    let has = |(name, value): (&String, &String)| {
        found.metadata.labels.as_ref().is_some_and(|labels| labels.get(name) == Some(value))
    };
    let has_labels = wanted.metadata.labels.iter().flatten().all(has);
    if has_labels && found.metadata.owner_references.iter().flatten().eq(&owners) {
        return Ok(());
    }
    let (uid, labels) = (&found.metadata.uid, &wanted.metadata.labels);
    let patch = json!({"metadata": {"uid": uid, "labels": labels, "ownerReferences": owners}});
    let name = wanted.metadata.name.clone().unwrap_or_default();
    match api.patch_metadata(&name, &merge_patch(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(ApplyError::Call { act: "change", name, source }),
    }
}

/// Removes the job from the owners of a claim that is to be retained, even if its other fields cannot be
/// changed.
async fn release(
    api: &Api<PersistentVolumeClaim>,
    found: &PersistentVolumeClaim,
    wanted: &PersistentVolumeClaim,
) -> Result<(), ApplyError> {
    let (name, owners) = (wanted.metadata.name.clone().unwrap_or_default(), owners(found, wanted));
    if found.metadata.owner_references.iter().flatten().count() <= owners.len() {
        return Ok(());
    }
    let patch = json!({"metadata": {"uid": found.metadata.uid, "ownerReferences": owners}});
    match api.patch_metadata(&name, &merge_patch(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(ApplyError::Call { act: "release", name, source }),
    }
}

/// Returns the reason why a claim cannot be changed to the wanted one; `None` if it can.
fn misfit(found: &PersistentVolumeClaim, wanted: &PersistentVolumeClaim) -> Option<String> {
    let spec = |claim: &PersistentVolumeClaim| claim.spec.clone().unwrap_or_default();
    let (found, wanted) = (spec(found), spec(wanted));
    let modes = |spec: &PersistentVolumeClaimSpec| spec.access_modes.clone().unwrap_or_default();
    let is_for_several = |modes: &[String]| modes.iter().any(|mode| mode == SEVERAL_WORKERS);
    if is_for_several(&modes(&wanted)) && !is_for_several(&modes(&found)) {
        return Some(format!(
            "it was made for one pod ({}), and several workers or spares need {SEVERAL_WORKERS}, which a claim \
             cannot become: set spec.workers.count to 1 and no spec.workers.spares, or \
             spec.workers.storage.claimName to a claim for several nodes in a new job",
            modes(&found).join(", ")
        ));
    }
    if let Some(class) = &wanted.storage_class_name
        && found.storage_class_name.as_ref() != Some(class)
    {
        let present = found.storage_class_name.unwrap_or_default();
        return Some(format!(
            "its storage class is `{present}` and cannot become `{class}`: restore \
             spec.workers.storage.storageClassName, or make a new job"
        ));
    }
    let (has, wants) = (size(&found)?, size(&wanted)?);
    let is_smaller = rlt_api::quantity_value(&wants)? < rlt_api::quantity_value(&has)?;
    is_smaller.then(|| {
        format!(
            "it requests {has} and cannot shrink to {wants}: set spec.workers.storage.size to {has} or more"
        )
    })
}

/// Whether a claim has no volume yet.
fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending")
}

/// Whether the wanted claim is larger than the existing one.
fn grows(found: &PersistentVolumeClaim, wanted: &PersistentVolumeClaim) -> bool {
    let value = |claim: &PersistentVolumeClaim| rlt_api::quantity_value(&size(claim.spec.as_ref()?)?);
    value(wanted).zip(value(found)).is_some_and(|(wants, has)| wants > has)
}

/// Returns the merge patch of the fields that can be changed: labels, annotations, the job as an owner, and
/// the size.
fn patch(found: &PersistentVolumeClaim, wanted: &PersistentVolumeClaim) -> Value {
    let size = wanted.spec.as_ref().and_then(size);
    json!({
        "metadata": {
            "uid": found.metadata.uid,
            "labels": wanted.metadata.labels,
            "annotations": wanted.metadata.annotations,
            "ownerReferences": owners(found, wanted),
        },
        "spec": {"resources": {"requests": {"storage": size}}},
    })
}

/// Returns the owner references of the wanted claim: the existing ones to objects of other kinds, and the job
/// unless the claim is to be retained.
fn owners(found: &PersistentVolumeClaim, wanted: &PersistentVolumeClaim) -> Vec<OwnerReference> {
    let is_of_job = |owner: &&OwnerReference| owner.kind == rlt_api::KIND;
    let others = found.metadata.owner_references.iter().flatten().filter(|owner| !is_of_job(owner)).cloned();
    others.chain(wanted.metadata.owner_references.clone().into_iter().flatten()).collect()
}

fn size(spec: &PersistentVolumeClaimSpec) -> Option<String> {
    Some(spec.resources.as_ref()?.requests.as_ref()?.get("storage")?.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(mode: &str, class: Option<&str>, size: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "a-storage"},
            "spec": {
                "accessModes": [mode], "storageClassName": class,
                "resources": {"requests": {"storage": size}},
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_impossible_change_of_a_claim_is_refused_with_the_field_to_change() {
        let one = claim("ReadWriteOnce", Some("fast"), "10Gi");
        let why = |wanted| misfit(&one, &wanted).unwrap_or_default();
        assert!(why(claim("ReadWriteMany", Some("fast"), "10Gi")).contains("spec.workers.count"));
        assert!(why(claim("ReadWriteOnce", Some("slow"), "10Gi")).contains("storageClassName"));
        assert!(why(claim("ReadWriteOnce", Some("fast"), "9Gi")).contains("spec.workers.storage.size"));
        for size in ["10Gi", "10240Mi", "11Gi"] {
            assert_eq!(why(claim("ReadWriteOnce", Some("fast"), size)), "");
        }
        assert_eq!(why(claim("ReadWriteOnce", None, "10Gi")), "", "any class is right");
        let several = claim("ReadWriteMany", Some("fast"), "10Gi");
        assert_eq!(misfit(&several, &one), None, "one worker can use it too");
    }

    #[test]
    fn a_claim_that_is_to_be_retained_loses_the_job_as_its_owner_and_no_other() {
        let owner = |kind: &str| json!({"apiVersion": "a/v1", "kind": kind, "name": "a", "uid": "u"});
        let mut found = claim("ReadWriteOnce", None, "1Gi");
        found.metadata.owner_references =
            serde_json::from_value(json!([owner("Tenant"), owner(rlt_api::KIND)])).unwrap();
        let mut wanted = claim("ReadWriteOnce", None, "2Gi");
        let retained = patch(&found, &wanted);
        assert_eq!(retained["metadata"]["ownerReferences"], json!([owner("Tenant")]));
        assert_eq!(retained["spec"], json!({"resources": {"requests": {"storage": "2Gi"}}}));
        wanted.metadata.owner_references = serde_json::from_value(json!([owner(rlt_api::KIND)])).unwrap();
        let released = patch(&found, &wanted);
        assert_eq!(released["metadata"]["ownerReferences"], json!([owner("Tenant"), owner(rlt_api::KIND)]));
    }
}
