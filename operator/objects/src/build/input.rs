//! Input from which the objects of a job are built, and their names.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_api::spec::Device;
use rlt_plan::WorkerGroup;

use super::authority::Authority;
use crate::args::PullPolicy;
use crate::job::Job;
use crate::labels;
use crate::pod_settings::PodSettings;
use crate::prepare::Prepared;

/// The cluster's settings of pods.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Image of the workers of jobs that name none.
    pub trainer_image: String,
    /// Image of workers with GPUs, of jobs that name none; `None` if they have the same image as other
    /// workers.
    pub trainer_cuda_image: Option<String>,
    /// Pull policy of those images.
    pub pull_policy: PullPolicy,
    /// Address and CA of the status channel; `None` if the operator serves none.
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

/// Address to which pods report, and the CA by which they verify the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelAccess {
    /// `https://host:port` of the operator.
    pub address: String,
    /// Certificate authority by which pods verify the operator's certificate.
    pub authority: Authority,
}

/// Input from which the objects of a job are built.
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
    pub(super) fn name(&self) -> &str {
        self.job.name()
    }

    /// Whether `group` is the first group of the job. Its objects have the names and labels of a job with a
    /// single group.
    pub(super) fn is_first(&self, group: &WorkerGroup) -> bool {
        self.first_group() == Some(group)
    }

    pub(super) fn first_group(&self) -> Option<&WorkerGroup> {
        self.prepared.plan.worker_groups.first()
    }

    /// Returns [`Self::metadata`] with the label of a group of workers, unless it is the first group.
    pub(super) fn metadata_of(&self, group: &WorkerGroup, name: String) -> ObjectMeta {
        let mut metadata = self.metadata(name);
        if !self.is_first(group) {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(labels::WORKER_GROUP.to_owned(), group.name.clone());
        }
        metadata
    }

    /// Name, labels and owner of an object of the job.
    pub(super) fn metadata(&self, name: String) -> ObjectMeta {
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
