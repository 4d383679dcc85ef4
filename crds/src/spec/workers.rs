//! `spec.workers`: the resources of the training. Everything but the numbers of workers and ranks, their
//! mesh, device, threads and timeout acts only on a cluster.

mod mesh;
mod placement;
mod resources;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::WorkerPodSpec;
pub use mesh::*;
pub use placement::*;
pub use resources::*;

/// Workers of the training: number, parallelism, device, pods and storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// Number of workers, each a pod on a cluster, with `ranksPerWorker` ranks. Ranks divide the work of
    /// every step among them, and the result is that of one rank up to rounding.
    #[schemars(range(min = 1, max = 1024))]
    pub count: u32,
    /// Number of ranks per worker: processes of one pod, each with a GPU of its own where the device is
    /// `Cuda`, and adjacent in the mesh. For full nodes of eight GPUs it is 8; `count * ranksPerWorker` is at
    /// most 1024.
    #[schemars(range(min = 1, max = 64))]
    pub ranks_per_worker: u32,
    /// Number of hot spares: additional pods of the same size that wait with the image pulled, the program
    /// loaded and the models fetched and read once. When a worker is lost, a spare takes over its ranks, and
    /// the other workers restart theirs in their pods; without a spare all pods are created again. Spares are
    /// created once all workers run, count against quotas and queues as workers do, and need the operator's
    /// status channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub spares: Option<u32>,
    /// Parallelism: how ranks share the model and the tokens.
    pub mesh: MeshSpec,
    /// Assignment of a step's samples to ranks. The result is the same up to rounding; how long the slowest
    /// rank computes is not.
    pub balance: Balance,
    /// Timeout in seconds of one exchange between ranks, after which those that are missing count as lost. It
    /// is for ranks that hang; a rank that dies is noticed at once.
    #[schemars(range(min = 1, max = 86400))]
    pub peer_timeout_seconds: u32,
    /// Device of the tensors; ranks exchange them by NCCL on GPUs and by Gloo on CPUs. On a cluster a rank
    /// has a GPU with `Cuda` and none with the others.
    pub device: Device,
    /// Number of CPU threads of one rank; by default its share of the machine's cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
    /// Image of the workers; by default the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Names of the Secrets with which the image is pulled.
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub image_pull_secrets: Vec<String>,
    /// Resources of one worker, for all of its ranks together.
    pub resources: ResourcesSpec,
    /// Labels that the nodes of workers must have.
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {"type": "string", "maxLength": 63}
    ))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that workers tolerate.
    #[schemars(length(max = 32))]
    pub tolerations: Vec<TolerationSpec>,
    /// PriorityClass of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Scheduler of the pods; by default the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// Placement of the workers near each other; by default anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
    /// NetworkPolicy of the workers, as far as the cluster's network enforces NetworkPolicies.
    pub network: NetworkAccess,
    /// Environment variables of every worker.
    #[schemars(length(max = 64))]
    pub env: Vec<EnvSpec>,
    /// Further fields of the pods: labels, volumes, a service account.
    pub pod: WorkerPodSpec,
    /// Any other fields of the pods, as a pod template (`metadata` with labels and annotations, `spec`): it
    /// is merged over the operator's pod as `kubectl patch` does by default (strategic merge: containers,
    /// volumes and variables by their names). The trainer's container is `trainer`. Fields that the operator
    /// sets, and those for which a job has fields of its own, are refused by name; privileges beyond Pod
    /// Security's level `restricted` must be allowed by the operator's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub pod_template: Option<Value>,
    /// Storage of run folders; without it they are lost with their pod, and a restart begins from the first
    /// step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self {
            count: 1,
            ranks_per_worker: 1,
            spares: None,
            mesh: MeshSpec::default(),
            balance: Balance::default(),
            peer_timeout_seconds: 1800,
            device: Device::default(),
            threads: None,
            image: None,
            image_pull_secrets: Vec::new(),
            resources: ResourcesSpec::default(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class_name: None,
            scheduler_name: None,
            topology: None,
            network: NetworkAccess::default(),
            env: Vec::new(),
            pod: WorkerPodSpec::default(),
            pod_template: None,
            storage: None,
        }
    }
}

impl WorkersSpec {
    /// Number of ranks of all workers.
    pub fn num_ranks(&self) -> u32 {
        self.count.saturating_mul(self.ranks_per_worker)
    }
}

/// Device of the tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Device {
    /// GPUs if each rank has one of its own, else CPUs.
    #[default]
    Auto,
    /// CPUs, even where there are GPUs.
    Cpu,
    /// One GPU for each rank; without them the job fails.
    Cuda,
}

impl Device {
    /// Returns the device of a job whose machine is unknown: the CPU for `Auto`, as on a cluster, where only
    /// `Cuda` requests GPUs.
    #[must_use]
    pub fn without_machine(self) -> Self {
        match self {
            Self::Cuda => Self::Cuda,
            Self::Auto | Self::Cpu => Self::Cpu,
        }
    }
}

/// NetworkPolicy of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkAccess {
    /// Egress is not restricted. Ingress is allowed from the job's workers, and from anywhere to the port of
    /// `tracking.prometheus`.
    #[default]
    Guarded,
    /// Ingress is that of `Guarded`, and egress reaches only other workers and, at any address, the ports of
    /// name servers (53) and of the operator: no hub, no remote reward, no object store, no tracking server.
    Isolated,
    /// No NetworkPolicy is created.
    Open,
}

/// Environment variable of every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSpec {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Value of the variable, in plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
    /// Secret that holds the variable's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretKeySpec>,
}

/// Value in a Secret of the job's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeySpec {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key of the value in the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}
