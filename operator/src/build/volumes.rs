//! The folders of a worker: what it reads, what it may write, and what outlives it.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, EmptyDirVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rlt_channel::environment;

use super::manifest::MANIFEST_KEY;
use super::{Blueprint, claim_name, config_map_name};

/// The folder of the manifest.
pub(super) const MANIFEST_FOLDER: &str = "/etc/rltraining";
/// The folder of run folders, models and data.
pub(super) const STORAGE_FOLDER: &str = "/storage";

/// The volumes of a worker, each with where it is mounted.
pub(super) fn volumes(blueprint: &Blueprint<'_>) -> Vec<(Volume, VolumeMount)> {
    let mut volumes = vec![
        read_only(manifest(blueprint), MANIFEST_FOLDER),
        writable(storage(blueprint), STORAGE_FOLDER),
        writable(scratch(), "/tmp"),
        writable(shared_memory(blueprint), "/dev/shm"),
    ];
    if blueprint.settings.channel.is_some() {
        volumes.push(read_only(channel(blueprint), environment::TOKEN_FOLDER));
    }
    volumes
}

fn read_only(volume: Volume, path: &str) -> (Volume, VolumeMount) {
    let (volume, mount) = writable(volume, path);
    (volume, VolumeMount { read_only: Some(true), ..mount })
}

fn writable(volume: Volume, path: &str) -> (Volume, VolumeMount) {
    let mount = VolumeMount { name: volume.name.clone(), mount_path: path.into(), ..VolumeMount::default() };
    (volume, mount)
}

fn key_to_path(key: &str) -> KeyToPath {
    KeyToPath { key: key.into(), path: key.into(), mode: None }
}

fn manifest(blueprint: &Blueprint<'_>) -> Volume {
    Volume {
        name: "manifest".into(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map_name(blueprint.name()),
            items: Some(vec![key_to_path(MANIFEST_KEY)]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn storage(blueprint: &Blueprint<'_>) -> Volume {
    let storage = blueprint.prepared.job.spec().workers.storage.as_ref();
    let volume = Volume { name: "storage".into(), ..Volume::default() };
    let Some(storage) = storage else {
        return Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..volume };
    };
    let claim = storage.claim_name.clone().unwrap_or_else(|| claim_name(blueprint.name()));
    let claim = PersistentVolumeClaimVolumeSource { claim_name: claim, read_only: None };
    Volume { persistent_volume_claim: Some(claim), ..volume }
}

/// The file system of the image is read-only.
fn scratch() -> Volume {
    Volume { name: "tmp".into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

fn shared_memory(blueprint: &Blueprint<'_>) -> Volume {
    let size = blueprint.prepared.job.spec().workers.resources.shared_memory.clone();
    let memory = EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: size.map(Quantity) };
    Volume { name: "shared-memory".into(), empty_dir: Some(memory), ..Volume::default() }
}

/// A token that only the operator accepts, beside the authority by which the operator is known.
fn channel(blueprint: &Blueprint<'_>) -> Volume {
    let token = ServiceAccountTokenProjection {
        audience: Some(rlt_channel::AUDIENCE.into()),
        expiration_seconds: Some(environment::TOKEN_SECONDS),
        path: environment::TOKEN_KEY.into(),
    };
    let authority = ConfigMapProjection {
        name: config_map_name(blueprint.name()),
        items: Some(vec![key_to_path(environment::CA_KEY)]),
        optional: None,
    };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(authority), ..VolumeProjection::default() },
    ];
    Volume {
        name: "channel".into(),
        projected: Some(ProjectedVolumeSource { sources: Some(sources), ..ProjectedVolumeSource::default() }),
        ..Volume::default()
    }
}
