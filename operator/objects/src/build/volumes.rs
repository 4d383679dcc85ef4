//! Volumes of a worker: read-only, writable, and persistent ones.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, EmptyDirVolumeSource, EphemeralVolumeSource,
    ImageVolumeSource, PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rlt_api::spec::{Device, EphemeralVolumeSpec, VolumeSpec};
use rlt_channel::environment;
use rlt_plan::WorkerGroup;

use super::{BuildInput, claim_name, config_map_name};

/// Folder with the files of the job's ConfigMap and the token.
const JOB_FOLDER: &str = "/etc/rltraining";
/// Folder that holds run folders, models and data.
pub(super) const STORAGE_FOLDER: &str = "/storage";

/// Returns the path of the ConfigMap's file `key` in a worker.
pub(super) fn job_file(key: &str) -> String {
    format!("{JOB_FOLDER}/{key}")
}

/// Returns the volumes of a worker with their mounts.
pub(super) fn volumes(input: &BuildInput<'_>, group: &WorkerGroup) -> Vec<(Volume, VolumeMount)> {
    let mut volumes = vec![
        read_only(job_files(input), JOB_FOLDER),
        writable(storage(input), STORAGE_FOLDER),
        writable(scratch(), "/tmp"),
    ];
    volumes.extend(shared_memory(input, group).map(|volume| writable(volume, "/dev/shm")));
    let own = input.prepared.job.spec().workers.pod.volumes.iter().enumerate();
    volumes.extend(own.map(|(idx, volume)| of_job(idx, volume)));
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

/// Returns the volume with the job's ConfigMap, and a token that only the operator accepts.
fn job_files(input: &BuildInput<'_>) -> Volume {
    let map = ConfigMapProjection { name: config_map_name(input.name()), ..ConfigMapProjection::default() };
    let token = ServiceAccountTokenProjection {
        audience: Some(rlt_channel::AUDIENCE.into()),
        expiration_seconds: Some(environment::TOKEN_SECONDS),
        path: environment::TOKEN_KEY.into(),
    };
    let mut sources = vec![VolumeProjection { config_map: Some(map), ..VolumeProjection::default() }];
    if input.settings.channel.is_some() {
        let token = Some(token);
        sources.push(VolumeProjection { service_account_token: token, ..VolumeProjection::default() });
    }
    Volume {
        name: "job".into(),
        projected: Some(ProjectedVolumeSource { sources: Some(sources), ..ProjectedVolumeSource::default() }),
        ..Volume::default()
    }
}

/// Returns a volume that the job requests, and its mount.
fn of_job(idx: usize, spec: &VolumeSpec) -> (Volume, VolumeMount) {
    let claim =
        |name: &String| PersistentVolumeClaimVolumeSource { claim_name: name.clone(), read_only: None };
    let map =
        |name: &String| ConfigMapVolumeSource { name: name.clone(), ..ConfigMapVolumeSource::default() };
    let secret = |name: &String| SecretVolumeSource {
        secret_name: Some(name.clone()),
        ..SecretVolumeSource::default()
    };
    let image =
        |reference: &String| ImageVolumeSource { reference: Some(reference.clone()), pull_policy: None };
    let volume = Volume {
        name: format!("volume-{idx}"),
        persistent_volume_claim: spec.claim_name.as_ref().map(claim),
        ephemeral: spec.ephemeral.as_ref().map(ephemeral),
        config_map: spec.config_map.as_ref().map(map),
        secret: spec.secret.as_ref().map(secret),
        image: spec.image.as_ref().map(image),
        ..Volume::default()
    };
    let has_files = spec.config_map.is_some() || spec.secret.is_some() || spec.image.is_some();
    match spec.read_only.unwrap_or(has_files) {
        true => read_only(volume, &spec.mount_path),
        false => writable(volume, &spec.mount_path),
    }
}

/// Returns a volume whose claim Kubernetes creates and deletes with each pod.
fn ephemeral(spec: &EphemeralVolumeSpec) -> EphemeralVolumeSource {
    let claim = PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".into()]),
        storage_class_name: spec.storage_class_name.clone(),
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), Quantity(spec.size.clone()))].into()),
            limits: None,
        }),
        ..PersistentVolumeClaimSpec::default()
    };
    let template = PersistentVolumeClaimTemplate { metadata: None, spec: claim };
    EphemeralVolumeSource { volume_claim_template: Some(template) }
}

fn storage(input: &BuildInput<'_>) -> Volume {
    let storage = input.prepared.job.spec().workers.storage.as_ref();
    let volume = Volume { name: "storage".into(), ..Volume::default() };
    let Some(storage) = storage else {
        return Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..volume };
    };
    let claim = storage.claim_name.clone().unwrap_or_else(|| claim_name(input.name()));
    let claim = PersistentVolumeClaimVolumeSource { claim_name: claim, read_only: None };
    Volume { persistent_volume_claim: Some(claim), ..volume }
}

/// Returns the volume of temporary files; the image's file system is read-only.
fn scratch() -> Volume {
    Volume { name: "tmp".into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

/// Returns the volume of shared memory, if it is requested, or if GPUs or several ranks may need more than a
/// container's default of 64 MiB.
fn shared_memory(input: &BuildInput<'_>, group: &WorkerGroup) -> Option<Volume> {
    let size = input.prepared.job.spec().workers.resources.shared_memory.clone();
    let is_short = group.device == Device::Cuda || group.ranks_per_worker > 1;
    let memory =
        EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: size.clone().map(Quantity) };
    let volume = Volume { name: "shared-memory".into(), empty_dir: Some(memory), ..Volume::default() };
    (size.is_some() || is_short).then_some(volume)
}
