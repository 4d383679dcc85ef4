//! `spec.workers.pod`: what workers' pods need on a cluster beside the training itself: labels, volumes,
//! identity. It acts only on a cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fields of workers' pods beside those of the operator.
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
    /// Annotations of the service account that is made for the job, such as `eks.amazonaws.com/role-arn`, by
    /// which a cloud knows it. The operator's settings have to allow them.
    #[schemars(extend(
        "maxProperties" = 16,
        "additionalProperties" = {"type": "string", "maxLength": 4096}
    ))]
    pub service_account_annotations: BTreeMap<String, String>,
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
    /// Devices by dynamic resource allocation (DRA), each for all ranks of a worker.
    #[schemars(length(max = 16))]
    pub resource_claims: Vec<ResourceClaimSpec>,
    /// Capabilities that the trainer's container has beside none, such as `IPC_LOCK` for RDMA. A process that
    /// is not root has them only in its bounding set, so an image has to give them to its program. The
    /// operator's settings have to allow them.
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub capabilities: Vec<String>,
    /// Use the network of the node instead of one of the pod, for RDMA without a second network. Names are
    /// still looked up in the cluster. NetworkPolicies do not reach such pods. The operator's settings have
    /// to allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
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
    /// Name of the policy in Kubernetes.
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
    /// A volume that is created for each worker and deleted with its pod, such as a node's NVMe.
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
    /// Number of sources that are given.
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

/// A claim of devices. It has one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceClaimSpec {
    /// Its name in the pod.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// A ResourceClaimTemplate of the job's namespace: each worker gets a claim of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub template_name: Option<String>,
    /// A ResourceClaim of the job's namespace, which all workers share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// The one request of the claim whose devices workers get; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub request: Option<String>,
    /// Whether its devices are the GPUs of a worker, one for each rank: then `resources.gpu` is not asked
    /// for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<bool>,
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
