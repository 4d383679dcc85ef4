//! `spec.workers`: the resources of the training. Everything but the numbers of workers and ranks, their
//! mesh, device, threads and timeout acts only on a cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::WorkerPodSpec;

/// The resources of the training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// Workers, each a pod on a cluster, with `ranksPerWorker` ranks. Ranks divide the work of every step
    /// among them, and the result is that of one rank up to rounding.
    #[schemars(range(min = 1, max = 1024))]
    pub count: u32,
    /// Ranks of one worker: processes of one pod, each with a GPU of its own where the device is `Cuda`,
    /// and neighbours in the mesh. For whole nodes of eight GPUs it is 8; `count * ranksPerWorker` is at
    /// most 1024.
    #[schemars(range(min = 1, max = 64))]
    pub ranks_per_worker: u32,
    /// Hot spares: further pods of the same size that wait with the image pulled, the program loaded and the
    /// models fetched and read once. When a worker is lost, a spare takes its ranks, and the other workers
    /// restart theirs in their pods; without a spare all pods are created again. Spares are created once all
    /// workers run, count against quotas and queues as workers do, and need the operator's status channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub spares: Option<u32>,
    /// How ranks share the model and the tokens.
    pub mesh: MeshSpec,
    /// How a step's samples are assigned to ranks. The result is the same up to rounding; how long the
    /// slowest rank computes is not.
    pub balance: Balance,
    /// Seconds that a rank waits for the others in one exchange before they count as lost. A rank that
    /// dies is noticed at once; this is for one that hangs.
    #[schemars(range(min = 1, max = 86400))]
    pub peer_timeout_seconds: u32,
    /// The device of the tensors; ranks exchange them by NCCL on GPUs and by Gloo on CPUs. On a cluster a
    /// rank has a GPU with `Cuda` and none with the others.
    pub device: Device,
    /// CPU threads of one rank; by default its share of the machine's cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
    /// The image of the workers; by default the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Secrets with which the image is pulled.
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub image_pull_secrets: Vec<String>,
    /// Resources of one worker, for all of its ranks together.
    pub resources: ResourcesSpec,
    /// Labels that a node must have.
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {"type": "string", "maxLength": 63}
    ))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that a node may have.
    #[schemars(length(max = 32))]
    pub tolerations: Vec<TolerationSpec>,
    /// The priority class of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// The scheduler of the pods; by default the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// How near to each other the workers are placed; by default anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
    /// The NetworkPolicy of the workers, as far as the cluster's network enforces NetworkPolicies.
    pub network: NetworkAccess,
    /// Variables in the environment of every worker.
    #[schemars(length(max = 64))]
    pub env: Vec<EnvSpec>,
    /// Further fields of the pods: labels, volumes, a service account.
    pub pod: WorkerPodSpec,
    /// Any other fields of the pods, as the template of a pod (`metadata` with labels and annotations,
    /// `spec`): it is merged over the operator's pod as `kubectl patch` does by default
    /// (strategic merge: containers, volumes and variables by their names). The container of the trainer is
    /// `trainer`. Fields of the operator, and those that a job has fields of its own for, are refused by
    /// name; privileges beyond Pod Security's level `restricted` have to be allowed by the operator's
    /// settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub pod_template: Option<Value>,
    /// The storage of run folders; without it they are lost with their pod, and a restart begins from the
    /// first step.
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
    /// The number of ranks of all workers.
    pub fn num_ranks(&self) -> u32 {
        self.count.saturating_mul(self.ranks_per_worker)
    }
}

/// How ranks share the model and the tokens. Their number is `count * ranksPerWorker`: `dpShard` times `sp`
/// times `tp` of them hold one copy of the model, and the neighbours are along the last. A degree that
/// divides `ranksPerWorker` keeps its exchanges within a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSpec {
    /// Ranks that hold one copy of the model together, a divisor of their number: each reads and keeps a
    /// part of every layer's weights, gradients and optimizer state, and a layer is whole only while it is
    /// computed with. So it is for every role that has no degree of its own. With 1 each rank has a copy of
    /// its own.
    #[schemars(range(min = 1, max = 1024))]
    pub dp_shard: u32,
    /// Ranks that share the tokens of one micro-batch of an update (Ulysses sequence parallelism), so that
    /// a sequence may be longer than one of them could hold; `dpShard * sp` divides the number of ranks.
    /// Each computes a part of the tokens, and attention over all of them for a part of the heads: `sp`
    /// divides the model's query heads, and divides or is a multiple of its key heads. With 1 each rank
    /// has tokens of its own.
    #[schemars(range(min = 1, max = 1024))]
    pub sp: u32,
    /// Training tensor parallelism (Megatron's `tensor_model_parallel_size`): neighbouring ranks that compute
    /// the same tokens with a part of every weight each, for models whose layers are too large for one rank;
    /// `dpShard * sp * tp` divides the number of ranks. A rank reads, gathers, updates and saves its part of
    /// the query and key heads, of the feed-forward block and of the vocabulary alone; two all-reduces a
    /// layer forward and two backward add the parts up. It divides the model's query heads, key heads and
    /// feed-forward width. Log-probs, the reference and the critic have it too; reward models are whole. For
    /// dense models without quantization, DoRA or a vision tower. With 1 each rank has all of a layer while
    /// it computes with it.
    #[schemars(range(min = 1, max = 1024))]
    pub tp: u32,
    /// Ranks over which the experts of every layer of a mixture are distributed (expert parallelism), a
    /// divisor of `dpShard * sp` and of the number of experts: no rank is added. Each keeps its experts'
    /// weights, gradients and optimizer state, computes them for the tokens of all, and gathers no others;
    /// the rows of tokens are sent to the ranks of their experts and back. With 1 each rank computes all
    /// experts of its tokens. The rollout has all experts, or shards of each by `rolloutTp`. On GPUs only 1.
    #[schemars(range(min = 1, max = 1024))]
    pub ep: u32,
    /// As `sp`, for log-probs of actor and reference, which keep nothing for a backward pass and so hold
    /// longer sequences: a divisor of the number of ranks; by default `sp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub logprob_sp: Option<u32>,
    /// The same for log-probs of the reference alone (verl's `ref.ulysses_sequence_parallel_size`): a divisor
    /// of the number of ranks; by default `logprobSp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reference_sp: Option<u32>,
    /// The same for the critic's values and updates: a divisor of the number of ranks; by default
    /// `sp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub critic_sp: Option<u32>,
    /// Ranks that hold one copy of a frozen reference together (verl's `ref.fsdp_config.fsdp_size`), as
    /// `dpShard` of the actor; by default `dpShard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reference_dp_shard: Option<u32>,
    /// The same of the critic (verl's `critic.model.fsdp_config.fsdp_size`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub critic_dp_shard: Option<u32>,
    /// The same of reward models (verl's `reward_model.model.fsdp_config.fsdp_size`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reward_model_dp_shard: Option<u32>,
    /// Rollout tensor parallelism (verl's `rollout.tensor_model_parallel_size`): ranks that share one copy of
    /// the packed weights, a divisor of their number. Each has a shard of every layer's heads with their keys
    /// and values, of its feed-forward block and of the output head's rows; embeddings and norms are whole on
    /// each. All ranks of the group sample the same completions. It divides the model's query heads and
    /// feed-forward width, and divides or is a multiple of its key heads. With 1 there is no tensor
    /// parallelism.
    #[schemars(range(min = 1, max = 1024))]
    pub rollout_tp: u32,
}

impl Default for MeshSpec {
    fn default() -> Self {
        Self {
            dp_shard: 1,
            sp: 1,
            tp: 1,
            ep: 1,
            logprob_sp: None,
            reference_sp: None,
            critic_sp: None,
            reference_dp_shard: None,
            critic_dp_shard: None,
            reward_model_dp_shard: None,
            rollout_tp: 1,
        }
    }
}

impl MeshSpec {
    /// Ranks that share the tokens of log-probs.
    pub fn sp_of_logprobs(&self) -> u32 {
        self.logprob_sp.unwrap_or(self.sp)
    }

    /// Ranks that share the tokens of the reference's log-probs.
    pub fn sp_of_reference(&self) -> u32 {
        self.reference_sp.unwrap_or_else(|| self.sp_of_logprobs())
    }

    /// Ranks that hold a copy of the reference together.
    pub fn dp_shard_of_reference(&self) -> u32 {
        self.reference_dp_shard.unwrap_or(self.dp_shard)
    }

    /// Ranks that hold a copy of the critic together.
    pub fn dp_shard_of_critic(&self) -> u32 {
        self.critic_dp_shard.unwrap_or(self.dp_shard)
    }

    /// Ranks that hold a copy of each reward model together.
    pub fn dp_shard_of_reward_models(&self) -> u32 {
        self.reward_model_dp_shard.unwrap_or(self.dp_shard)
    }

    /// Whether ranks have a part of any role's weights alone.
    pub fn is_any_sharded(&self) -> bool {
        let roles =
            [self.dp_shard_of_reference(), self.dp_shard_of_critic(), self.dp_shard_of_reward_models()];
        // Weights of experts have shards of their own, and weights that are cut parts.
        self.dp_shard > 1 || self.ep > 1 || self.tp > 1 || roles.into_iter().any(|degree| degree > 1)
    }

    /// Ranks that share the critic's tokens.
    pub fn sp_of_critic(&self) -> u32 {
        self.critic_sp.unwrap_or(self.sp)
    }
}

/// How a step's samples are assigned to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Balance {
    /// Even work, as the lengths of the sequences let it be estimated, by the differencing method of
    /// Karmarkar and Karp.
    #[default]
    Work,
    /// Even work among shares of as many groups each (verl's `balance_batch`), so that all ranks hold as
    /// many.
    Count,
    /// As many neighbours each, of any lengths (verl without `balance_batch`): the rank of a sample follows
    /// only from its index in the batch.
    Order,
}

/// The device of the tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Device {
    /// GPUs where each rank has one of its own, else CPUs.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU for each rank; without them the job fails.
    Cuda,
}

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

/// A taint that a node may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TolerationSpec {
    /// The taint's key; by default every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// How the value is compared; by default `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The taint's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The taint's effect; by default every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How a toleration's value is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The taint has this value.
    #[default]
    Equal,
    /// The taint has any value.
    Exists,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// Keeps pods away.
    NoSchedule,
    /// Keeps pods away where there is another node.
    PreferNoSchedule,
    /// Keeps pods away and evicts them.
    NoExecute,
}

/// How near to each other the workers are placed: one of `required` and `preferred`, `slice`, or both. A
/// domain is all nodes with the same value of a label, such as `topology.kubernetes.io/zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TopologySpec {
    /// The label whose value must be the same for the nodes of all workers; else none of them starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub required: Option<String>,
    /// The label whose value should be the same for the nodes of all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub preferred: Option<String>,
    /// Neighbours by index that share a smaller domain, such as a rack or an NVLink domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<TopologySliceSpec>,
}

/// Workers in the order of their indices, cut into slices of equal size, each in one domain.
/// Axes of the mesh that fit a slice exchange within its domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySliceSpec {
    /// The label whose value must be the same for the nodes of all workers of a slice; else none of them
    /// starts.
    #[schemars(length(min = 1, max = 317))]
    pub required: String,
    /// Workers of a slice, a divisor of `count`.
    #[schemars(range(min = 1, max = 1024))]
    pub size: u32,
}

/// The NetworkPolicy of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkAccess {
    /// Egress is not restricted. Ingress is allowed from the job's workers, and from anywhere to the port of
    /// `tracking.prometheus`.
    #[default]
    Guarded,
    /// As `Guarded`, but workers reach only each other, name servers and the operator: no hub, no remote
    /// reward, no object store, no tracking server.
    Isolated,
    /// No NetworkPolicy is made.
    Open,
}

/// A variable in the environment of every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvSpec {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
    /// Where its value is kept secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretKeySpec>,
}

/// A value in a Secret of the job's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeySpec {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
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
