//! `spec.workers.pod`: fields of worker pods beyond the training itself: labels, volumes, identity. They have
//! effect only on a cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fields of worker pods in addition to those that the operator sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkerPodSpec {
    /// Labels of the pods, for policies, cost reports and webhooks. Labels that begin with `rltraining.dev/`
    /// are reserved for the operator.
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
    /// Existing service account of the pods, for object stores and registries that trust one (workload
    /// identity); by default one without any rights is created for the job. No token for the API server is
    /// mounted for either.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Annotations of the service account that is created for the job, such as `eks.amazonaws.com/role-arn`,
    /// by which a cloud identifies it. The operator's settings must allow them.
    #[schemars(extend(
        "maxProperties" = 16,
        "additionalProperties" = {"type": "string", "maxLength": 4096}
    ))]
    pub service_account_annotations: BTreeMap<String, String>,
    /// Pull policy of the image; by default that of the operator's settings, and for a job's own image that
    /// of Kubernetes: `Always` for `latest`, else `IfNotPresent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// RuntimeClass of the pods, such as `nvidia`; by default the node's own runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Additional volumes, each mounted in all workers.
    #[schemars(length(max = 16))]
    pub volumes: Vec<VolumeSpec>,
    /// Devices by dynamic resource allocation (DRA), each for all ranks of a worker.
    #[schemars(length(max = 16))]
    pub resource_claims: Vec<ResourceClaimSpec>,
    /// Linux capabilities of the trainer's container, which has none by default, such as `IPC_LOCK` for RDMA.
    /// A process that is not root has them only in its bounding set, so the image must grant them to its
    /// program. The operator's settings must allow them.
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub capabilities: Vec<String>,
    /// Whether pods use the network of the node instead of one of their own, for RDMA without a second
    /// network. Names are still resolved in the cluster. NetworkPolicies do not apply to such pods. The
    /// operator's settings must allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
}

/// Pull policy of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// The image is pulled at every start.
    Always,
    /// The image is pulled if the node does not have it.
    IfNotPresent,
    /// The image is never pulled: the node must have it.
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

/// Volume and its mount path. It has exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeSpec {
    /// Folder at which workers see the volume, such as `/models`.
    #[schemars(length(min = 2, max = 1024))]
    pub mount_path: String,
    /// Whether workers can only read the volume; by default true for images, ConfigMaps and Secrets, and
    /// false for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Existing PersistentVolumeClaim in the job's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Volume that is created for each worker and deleted with its pod, such as a node's NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSpec>,
    /// ConfigMap in the job's namespace: a file for each of its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub config_map: Option<String>,
    /// Secret in the job's namespace: a file for each of its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret: Option<String>,
    /// OCI image whose files are mounted, such as a model that nodes cache like other images. It needs a
    /// cluster whose nodes mount images (Kubernetes 1.35, or the feature gate `ImageVolume`).
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

/// Claim of devices. It has exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceClaimSpec {
    /// Name of the claim in the pod.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// ResourceClaimTemplate in the job's namespace: each worker gets a claim of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub template_name: Option<String>,
    /// ResourceClaim in the job's namespace, which all workers share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Request of the claim whose devices workers get; by default all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub request: Option<String>,
    /// Whether the devices are the GPUs of a worker, one for each rank; `resources.gpu` is then not
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<bool>,
}

/// Volume that is created for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EphemeralVolumeSpec {
    /// Size of the volume as a Kubernetes quantity.
    #[schemars(length(min = 1, max = 32))]
    pub size: String,
    /// Storage class of the volume; by default the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}
