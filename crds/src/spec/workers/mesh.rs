//! `spec.workers.mesh` and `spec.workers.balance`: how ranks share the model and the tokens. Which degrees a
//! job may have is in `rules::parallelism`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parallelism: how ranks share the model and the tokens. There are `count * ranksPerWorker` ranks: `dpShard`
/// times `sp` times `tp` of them hold one copy of the model, and adjacent ranks are along the last axis. A
/// degree that divides `ranksPerWorker` keeps its exchanges within a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSpec {
    /// FSDP degree: number of ranks that hold one copy of the model together, a divisor of the number of
    /// ranks. Each reads and keeps a shard of every layer's weights, gradients and optimizer state, and a
    /// layer is gathered only while it computes. It applies to every role that has no degree of its own. With
    /// 1 each rank has a full copy.
    #[schemars(range(min = 1, max = 1024))]
    pub dp_shard: u32,
    /// Sequence-parallel degree (Ulysses): number of ranks that share the tokens of one micro-batch of an
    /// update, so that a sequence may be longer than one of them could hold; `dpShard * sp` divides the
    /// number of ranks. Each computes a part of the tokens, and attention over all of them for a part of the
    /// heads: `sp` divides the model's query heads, and divides or is a multiple of its key heads. With 1
    /// each rank has its own tokens.
    #[schemars(range(min = 1, max = 1024))]
    pub sp: u32,
    /// Tensor-parallel degree of the training (Megatron's `tensor_model_parallel_size`): number of adjacent
    /// ranks that compute the same tokens, each with a shard of every weight, for models whose layers are too
    /// large for one rank; `dpShard * sp * tp` divides the number of ranks. A rank reads, gathers, updates
    /// and saves only its shard of the query and key heads, of the feed-forward block or of every expert, and
    /// of the vocabulary; two all-reduces per layer in the forward pass and two in the backward pass sum the
    /// partial results. It divides the model's query heads, key heads and feed-forward widths. It applies to
    /// log-probs, the reference and the critic too; reward models are not split by it. It excludes
    /// quantization, DoRA, latent attention, attention sinks, a vision tower and some norms of queries and
    /// keys (docs/support.md). With 1 each rank has all of a layer while it computes.
    #[schemars(range(min = 1, max = 1024))]
    pub tp: u32,
    /// Expert-parallel degree: number of ranks over which the experts of every layer of a mixture are
    /// distributed, a divisor of `dpShard * sp` and of the number of experts; no rank is added. Each keeps
    /// its experts' weights, gradients and optimizer state, computes them for the tokens of all, and gathers
    /// no others; the rows of tokens are sent to the ranks of their experts and back. With 1 each rank
    /// computes all experts of its tokens. The rollout has all experts, or shards of each by `rolloutTp`. On
    /// GPUs only 1.
    #[schemars(range(min = 1, max = 1024))]
    pub ep: u32,
    /// Sequence-parallel degree of log-probs of actor and reference, a divisor of the number of ranks; by
    /// default `sp`. These passes keep nothing for a backward pass and so hold longer sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub logprob_sp: Option<u32>,
    /// Sequence-parallel degree of the reference's log-probs (verl's `ref.ulysses_sequence_parallel_size`), a
    /// divisor of the number of ranks; by default `logprobSp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reference_sp: Option<u32>,
    /// Sequence-parallel degree of the critic's values and updates, a divisor of the number of ranks; by
    /// default `sp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub critic_sp: Option<u32>,
    /// FSDP degree of a frozen reference (verl's `ref.fsdp_config.fsdp_size`), a divisor of the number of
    /// ranks; by default `dpShard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reference_dp_shard: Option<u32>,
    /// FSDP degree of the critic (verl's `critic.model.fsdp_config.fsdp_size`); by default `dpShard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub critic_dp_shard: Option<u32>,
    /// FSDP degree of reward models (verl's `reward_model.model.fsdp_config.fsdp_size`); by default
    /// `dpShard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub reward_model_dp_shard: Option<u32>,
    /// Tensor-parallel degree of the rollout (verl's `rollout.tensor_model_parallel_size`): number of ranks
    /// that share one copy of the packed weights, a divisor of the number of ranks. Each has a shard of every
    /// layer's heads with their keys and values, of its feed-forward block and of the output head's rows;
    /// embeddings and norms are full on each. All ranks of the group sample the same completions. It divides
    /// the model's query heads and feed-forward width, and divides or is a multiple of its key heads. With 1
    /// there is no tensor parallelism.
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
    /// Sequence-parallel degree of log-prob passes.
    pub fn sp_of_logprobs(&self) -> u32 {
        self.logprob_sp.unwrap_or(self.sp)
    }

    /// Sequence-parallel degree of the reference policy's log-prob passes.
    pub fn sp_of_reference(&self) -> u32 {
        self.reference_sp.unwrap_or_else(|| self.sp_of_logprobs())
    }

    /// FSDP degree of the reference policy.
    pub fn dp_shard_of_reference(&self) -> u32 {
        self.reference_dp_shard.unwrap_or(self.dp_shard)
    }

    /// FSDP degree of the critic.
    pub fn dp_shard_of_critic(&self) -> u32 {
        self.critic_dp_shard.unwrap_or(self.dp_shard)
    }

    /// FSDP degree of each reward model.
    pub fn dp_shard_of_reward_models(&self) -> u32 {
        self.reward_model_dp_shard.unwrap_or(self.dp_shard)
    }

    /// Whether ranks hold only shards of any role's weights.
    pub fn is_any_sharded(&self) -> bool {
        let roles =
            [self.dp_shard_of_reference(), self.dp_shard_of_critic(), self.dp_shard_of_reward_models()];
        // Expert parallelism and tensor parallelism shard weights too.
        self.dp_shard > 1 || self.ep > 1 || self.tp > 1 || roles.into_iter().any(|degree| degree > 1)
    }

    /// Sequence-parallel degree of the critic's passes.
    pub fn sp_of_critic(&self) -> u32 {
        self.critic_sp.unwrap_or(self.sp)
    }
}

/// Assignment of a step's samples to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Balance {
    /// Equal work per rank, as estimated from the lengths of the sequences, by the differencing method of
    /// Karmarkar and Karp.
    #[default]
    Work,
    /// Equal work with equally many groups per rank (verl's `balance_batch`).
    Count,
    /// Equally many adjacent groups per rank, of any lengths (verl without `balance_batch`): the rank of a
    /// sample follows only from its index in the batch.
    Order,
}
