//! The PersistentVolumeClaim that is created for a job's run folder.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{BuildInput, claim_name, digest};
use crate::labels;

/// Returns the claim of a job that requests a new one. A claim that is retained after its job is used again
/// by a later job of the same name. An annotation of the claim has a digest of size, class, access mode and
/// retention.
pub fn storage_claim(input: &BuildInput<'_>) -> Option<PersistentVolumeClaim> {
    let storage = input.prepared.job.spec().workers.storage.as_ref()?;
    let size = storage.size.clone()?;
    let mut metadata = input.metadata(claim_name(input.name()));
    if storage.retain {
        metadata.owner_references = None;
    }
    // Workers on several nodes write into one run folder.
    let is_shared = input.prepared.plan.worker_groups.iter().map(|group| group.num_workers).sum::<u32>() > 1;
    let mode = if is_shared { "ReadWriteMany" } else { "ReadWriteOnce" };
    let class = storage.storage_class_name.as_deref().unwrap_or_default();
    let owned = if storage.retain { "retained" } else { "owned" };
    metadata.annotations =
        Some([(labels::CONTENT_DIGEST.to_owned(), digest([size.as_str(), class, mode, owned]))].into());
    Some(PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.into()]),
            storage_class_name: storage.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(size))])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}
