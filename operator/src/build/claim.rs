//! The claim that is made for a job's run folder.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Blueprint, claim_name};

/// The claim of a job that asks for a new one. Unless it goes with the job, a job of the same name finds it
/// again.
pub fn storage_claim(blueprint: &Blueprint<'_>) -> Option<PersistentVolumeClaim> {
    let storage = blueprint.prepared.job.spec().workers.storage.as_ref()?;
    let size = storage.size.clone()?;
    let mut metadata = blueprint.metadata(claim_name(blueprint.name()));
    if storage.retain {
        metadata.owner_references = None;
    }
    // Workers on several nodes write into one run folder.
    let is_shared = blueprint.prepared.plan.worker_groups.iter().any(|group| group.num_workers > 1);
    let mode = if is_shared { "ReadWriteMany" } else { "ReadWriteOnce" };
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
