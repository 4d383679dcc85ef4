//! `spec.workers.pod`: what a cluster wants of the pods of workers beside the training itself. All of it
//! acts only there.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the pods of workers have beside what the operator gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkerPodSpec {
    /// Labels of the pods, for policies, cost reports and webhooks. Those of the operator, which begin with
    /// `rltraining.dev/`, are set by it alone.
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {"type": "string", "maxLength": 63}
    ))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods, such as `k8s.v1.cni.cncf.io/networks` for a second network.
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {"type": "string", "maxLength": 4096}
    ))]
    pub annotations: BTreeMap<String, String>,
    /// A service account that exists, for object stores and registries that trust one (workload identity);
    /// by default one is made for the job, without any rights. No token for the API server is mounted for
    /// either.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// When the image is pulled; by default as the operator's settings say, and for a job's own image as
    /// Kubernetes does: `Always` for `latest`, else `IfNotPresent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// The RuntimeClass of the pods, such as `nvidia`; by default the node's own runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Further volumes, each mounted in all workers.
    #[schemars(length(max = 16))]
    pub volumes: Vec<VolumeSpec>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Never: the node has to have it.
    Never,
}

impl ImagePullPolicy {
    /// As Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A volume and where it is mounted. It has one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeSpec {
    /// The folder at which workers find it, such as `/models`.
    #[schemars(length(min = 2, max = 1024))]
    pub mount_path: String,
    /// Whether workers can only read it; by default they can of images, ConfigMaps and Secrets, and write
    /// everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// A claim that exists in the job's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// A volume that is made for each worker and goes with its pod, such as a node's NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSpec>,
    /// A ConfigMap of the job's namespace: a file for each of its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub config_map: Option<String>,
    /// A Secret of the job's namespace: a file for each of its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret: Option<String>,
    /// The files of an OCI image, such as a model that nodes keep as they keep images. It needs a cluster
    /// whose nodes mount images (Kubernetes 1.35, or the gate `ImageVolume`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
}

impl VolumeSpec {
    /// How many sources are given.
    pub(crate) fn num_sources(&self) -> usize {
        let given = [
            self.claim_name.is_some(),
            self.ephemeral.is_some(),
            self.config_map.is_some(),
            self.secret.is_some(),
            self.image.is_some(),
        ];
        given.into_iter().filter(|given| *given).count()
    }
}

/// A volume that is made for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EphemeralVolumeSpec {
    /// Its size.
    #[schemars(length(min = 1, max = 32))]
    pub size: String,
    /// Its storage class; by default the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}
