//! Resources that a worker requests from the cluster: cores, memory, GPUs, and the volume of run folders.
//! They have effect only on a cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resources of one worker with all of its ranks, as Kubernetes quantities such as `500m`, `4` or `16Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ResourcesSpec {
    /// CPU cores, as a request without a limit; by default no request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub cpu: Option<String>,
    /// Memory, as request and limit; by default neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub memory: Option<String>,
    /// Name of the GPU resource.
    #[schemars(length(min = 1, max = 253))]
    pub gpu: String,
    /// Other resources by their names, each as request and limit: `rdma/hca_shared: 1`, `hugepages-2Mi: 1Gi`.
    #[schemars(extend(
        "maxProperties" = 16,
        "additionalProperties" = {"type": "string", "maxLength": 32}
    ))]
    pub extra: BTreeMap<String, String>,
    /// Size of the shared memory (`/dev/shm`), which counts as memory; by default half of the node's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub shared_memory: Option<String>,
}

impl Default for ResourcesSpec {
    fn default() -> Self {
        Self {
            cpu: None,
            memory: None,
            gpu: "nvidia.com/gpu".into(),
            extra: BTreeMap::new(),
            shared_memory: None,
        }
    }
}

/// Volume of run folders: an existing PersistentVolumeClaim, or one that is created for the job. It is
/// mounted at `/storage`, and the run folder is `/storage/runs/<job>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StorageSpec {
    /// Existing PersistentVolumeClaim. Models and data in it can be named by their path below `/storage`, or
    /// by a path relative to it, such as `runs/sft/export`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Size of the claim that is created for the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub size: Option<String>,
    /// Storage class of the claim that is created for the job; by default the cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Whether the claim that was created for the job is kept when the job is deleted.
    pub retain: bool,
}

impl Default for StorageSpec {
    fn default() -> Self {
        Self { claim_name: None, size: None, storage_class_name: None, retain: true }
    }
}
