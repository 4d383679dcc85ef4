//! What a worker asks the cluster for: cores, memory, GPUs, and the volume of run folders. It acts only on a
//! cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The resources of one worker with all of its ranks, as Kubernetes' quantities such as `500m`,
/// `4` or `16Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ResourcesSpec {
    /// CPU cores, requested but no limit; by default no request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub cpu: Option<String>,
    /// Memory, requested and never exceeded; by default no request and no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub memory: Option<String>,
    /// The name of the GPU resource.
    #[schemars(length(min = 1, max = 253))]
    pub gpu: String,
    /// Other resources by their names, each requested and limited: `rdma/hca_shared: 1`, `hugepages-2Mi:
    /// 1Gi`.
    #[schemars(extend(
        "maxProperties" = 16,
        "additionalProperties" = {"type": "string", "maxLength": 32}
    ))]
    pub extra: BTreeMap<String, String>,
    /// Shared memory, which counts as memory; by default half of the node's.
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

/// The volume of run folders: a claim that exists, or one that is created for the job. It is mounted
/// at `/storage`, and the run folder is `/storage/runs/<job>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StorageSpec {
    /// A claim that exists; models and data in it can be named by their path below `/storage`, or by one
    /// that begins there, such as `runs/sft/export`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Size of the claim that is made for the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub size: Option<String>,
    /// Storage class of the claim that is made for the job; by default the cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Keep the claim that was made for the job when the job is deleted.
    pub retain: bool,
}

impl Default for StorageSpec {
    fn default() -> Self {
        Self { claim_name: None, size: None, storage_class_name: None, retain: true }
    }
}
