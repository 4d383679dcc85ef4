//! `spec.workers.mesh` and `spec.workers.balance`: how ranks share the model and the tokens. Which degrees a
//! job may have is in `rules::parallelism`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
