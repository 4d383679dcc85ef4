//! The desired objects of a job, each a pure function of the job and its plan. Existing objects are not read
//! here.

mod authority;
mod avoidance;
mod claim;
mod container;
mod environment;
mod manifest;
mod network;
mod network_policy;
mod placement;
mod pod;
mod pod_group;
mod volumes;
mod workload;

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_api::Defaults;
use rlt_api::plan::WorkerGroup;
use rlt_api::spec::Device;
use sha2::{Digest as _, Sha256};

pub use authority::Authority;
pub use avoidance::avoid;
pub use claim::storage_claim;
pub use manifest::{MANIFEST_KEY, config_map, content_digest};
pub use network::{endpoint, endpoint_digest, service, service_account};
pub use network_policy::network_policy;
pub use placement::{Flavor, Flavors, Placement, PlacementConflict};
pub use pod::{allow_restarts, pod};
pub use pod_group::{Gang, gang, pod_group, pod_group_kind, pod_group_name};
use serde_json::Value;
pub use workload::{PriorityClass, queue_priority_class, workload, workload_digest, workload_labels};

use crate::args::PullPolicy;
use crate::job::Job;
use crate::labels;
use crate::prepare::Prepared;
use crate::privileges::Privileges;
use crate::queue;

/// The cluster's settings of pods.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The image of the workers, where a job names none.
    pub trainer_image: String,
    /// The image of workers with GPUs, where a job names none; `None` where one image does for both.
    pub trainer_cuda_image: Option<String>,
    /// Pull policy of those images.
    pub pull_policy: PullPolicy,
    /// Address and CA of the status channel; `None` where there is none.
    pub channel: Option<ChannelAccess>,
    /// Variables by which pods send traces; empty without a collector.
    pub traces: Vec<(String, String)>,
    /// Allowed privileges and defaults of jobs' pods.
    pub pods: PodSettings,
}

impl Settings {
    /// The image of workers that compute on `device`.
    pub fn image_for(&self, device: Device) -> &str {
        let cuda = self.trainer_cuda_image.as_ref().filter(|_| device == Device::Cuda);
        cuda.unwrap_or(&self.trainer_image)
    }
}

/// The cluster's settings for the pods of all jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSettings {
    /// Privileges beyond Pod Security's level `restricted`.
    pub privileges: Privileges,
    /// The cluster's defaults, which a namespace's defaults override.
    pub defaults: Defaults,
}

/// Address to which pods report, and the CA by which they verify the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelAccess {
    /// `https://host:port` of the operator.
    pub address: String,
    /// The authority behind the operator's certificate.
    pub authority: Authority,
}

/// The input of a job's objects.
#[derive(Clone, Copy, Debug)]
pub struct BuildInput<'a> {
    /// The RLTrainingJob that owns the objects.
    pub job: &'a Job,
    /// The specification and plan of the job.
    pub prepared: &'a Prepared,
    /// The cluster's settings.
    pub settings: &'a Settings,
}

impl BuildInput<'_> {
    fn name(&self) -> &str {
        self.job.name()
    }

    /// Whether a group of workers is the first one, whose objects are named and labelled as if there were no
    /// other.
    fn is_first(&self, group: &WorkerGroup) -> bool {
        self.first_group() == Some(group)
    }

    fn first_group(&self) -> Option<&WorkerGroup> {
        self.prepared.plan.worker_groups.first()
    }

    /// Returns [`Self::metadata`] for an object of a group of workers.
    fn metadata_of(&self, group: &WorkerGroup, name: String) -> ObjectMeta {
        let mut metadata = self.metadata(name);
        if !self.is_first(group) {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(labels::WORKER_GROUP.to_owned(), group.name.clone());
        }
        metadata
    }

    /// Name, labels and owner of an object of the job.
    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.job.namespace().into()),
            labels: Some(labels::of_job(self.job)),
            owner_references: Some(vec![self.job.owner_reference()]),
            ..ObjectMeta::default()
        }
    }
}

/// An error while an object is written.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The manifest has no YAML form, which would be a bug.
    #[error("failed to write the manifest as YAML")]
    Manifest(#[from] serde_saphyr::SerializeError),
    /// An object has no JSON form, which would be a bug.
    #[error("failed to write an object as JSON")]
    Json(#[from] serde_json::Error),
}

/// Every object of an attempt as it is sent, in the order of creation; a cluster with a gang scheduler gets a
/// PodGroup besides.
///
/// # Errors
/// [`ObjectError`], which would be a bug.
pub fn objects(input: &BuildInput<'_>, attempt: u32) -> Result<Vec<Value>, ObjectError> {
    let mut objects =
        vec![serde_json::to_value(service_account(input))?, serde_json::to_value(config_map(input)?)?];
    let groups = &input.prepared.plan.worker_groups;
    for group in groups {
        objects.extend(service(input, group).map(serde_json::to_value).transpose()?);
        objects.extend(endpoint(input, group, None).map(serde_json::to_value).transpose()?);
    }
    objects.extend(storage_claim(input).map(serde_json::to_value).transpose()?);
    objects.extend(network_policy(input).map(serde_json::to_value).transpose()?);
    let asked_for = queue::asked_for(input.job).map(|queue| workload(input, queue, None, &[]));
    objects.extend(asked_for.map(serde_json::to_value).transpose()?);
    for group in groups {
        for worker_idx in 0..group.num_workers {
            objects.push(serde_json::to_value(pod(input, attempt, group, worker_idx))?);
        }
    }
    Ok(objects)
}

/// Name of the ConfigMap of a job.
pub fn config_map_name(job: &str) -> String {
    format!("{job}-manifest")
}

/// Name of the ServiceAccount and the NetworkPolicy of a job's workers.
pub fn workers_name(job: &str) -> String {
    format!("{job}-trainer")
}

/// Name of the claim that is made for a job.
pub fn claim_name(job: &str) -> String {
    format!("{job}-storage")
}

/// The digest of an object's content, for its annotation.
pub(crate) fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let mut hex = String::with_capacity(32);
    for byte in hasher.finalize().iter().take(16) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests;
