//! `spec.training`: batch sizes, optimizer, precision and length of the training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::workers::Device;

/// Batch sizes, optimizer, precision and length of the training. All batch sizes count prompts;
/// `rollout.samplesPerPrompt` multiplies them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrainingSpec {
    /// Number of steps to train; at most one of `steps` and `epochs` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000000))]
    pub steps: Option<u64>,
    /// Number of passes over the training prompts; by default 1 where `steps` is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub epochs: Option<u32>,
    /// Number of prompts per step (of demonstrations with `SFT`).
    #[schemars(range(min = 1, max = 1000000))]
    pub prompts_per_step: u32,
    /// Number of prompts per optimizer update (verl's `ppo_mini_batch_size`), a divisor of `promptsPerStep`;
    /// by default all, which is on-policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub prompts_per_update: Option<u32>,
    /// Number of passes over the samples of a step (verl's `ppo_epochs`).
    #[schemars(range(min = 1, max = 1000))]
    pub epochs_per_batch: u32,
    /// Maximum number of tokens of one forward and backward pass on one rank, never exceeded;
    /// `workers.mesh.sp` ranks together hold as many times more. A prompt counts once for all of its samples
    /// in the pass. By default the tokens of a full group of the longest sequences, within 1024 and 4096, or
    /// twice the longest sequence if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_tokens_per_micro_batch: Option<u32>,
    /// Maximum number of tokens of one forward pass without gradients on one rank, where
    /// `workers.mesh.logprobSp` ranks share them; by default twice `maxTokensPerMicroBatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_logprob_tokens: Option<u32>,
    /// Token budgets, offload and precision of roles other than the actor; by default the actor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<RolesSpec>,
    /// Compute dtype of the layers; weights, gradients and optimizer state are kept in fp32 where trained.
    /// `Auto` is bf16 on a GPU and fp32 on a CPU.
    pub precision: Precision,
    /// Precision of fp32 matrix products.
    pub matmul_precision: MatmulPrecision,
    /// AdamW optimizer (<https://arxiv.org/abs/1711.05101>).
    pub optimizer: OptimizerSpec,
    /// Learning rate schedule: warm-up and decay.
    pub schedule: ScheduleSpec,
    /// Global norm to which larger gradients are clipped.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub max_grad_norm: f64,
    /// Coefficient of the auxiliary loss that balances the routers of a mixture of experts, as in
    /// transformers; the model's `router_aux_loss_coef` is the value of its pre-training, most often 0.001.
    /// By default 0.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub router_aux_loss_coef: f64,
    /// Whether only algorithms are used that give the same bits in every run. CPUs always do; on GPUs it
    /// makes attention's backward pass, sums by index and matrix products slower.
    pub deterministic: bool,
    /// Whether only the layers' inputs are kept, and the rest is recomputed in the backward pass. By default
    /// true on GPUs for models above a billion parameters, unless the device holds everything that layers
    /// keep, and false on CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_checkpointing: Option<bool>,
    /// Whether the weights of a layer that are gathered from shards, or fetched from offload storage, are
    /// freed between its forward and its backward pass and gathered again (`reshard_after_forward` of FSDP2
    /// and verl), for actor and critic alike. With false an update gathers every layer once instead of twice
    /// and holds all of them at once. The results are the same.
    pub reshard_after_forward: bool,
    /// Number of last layers that stay gathered between forward and backward pass while the others are freed;
    /// at most this many are held at once. The backward pass begins with the last layers, so that these wait
    /// the shortest time. By default 1, whose backward pass follows at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub unsharded_layers: Option<u32>,
    /// State of actor and critic that is offloaded from the device between uses: less memory, more time, the
    /// same results.
    pub offload: OffloadSpec,
    /// Random seed of everything but the generated task.
    pub seed: u64,
    /// Number of consecutive steps with a non-finite loss or gradient, each skipped, after which the job
    /// fails.
    #[schemars(range(min = 1, max = 1000000))]
    pub max_consecutive_non_finite: u32,
    /// Number of steps between evaluations on the held-out prompts; 0 for only before and after the training.
    #[schemars(range(min = 0, max = 100000000))]
    pub evaluate_every: u64,
    /// Whether an evaluation precedes the first step.
    pub evaluate_before: bool,
}

impl Default for TrainingSpec {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            prompts_per_step: 32,
            prompts_per_update: None,
            epochs_per_batch: 1,
            max_tokens_per_micro_batch: None,
            max_logprob_tokens: None,
            roles: None,
            precision: Precision::Auto,
            matmul_precision: MatmulPrecision::Highest,
            optimizer: OptimizerSpec::default(),
            schedule: ScheduleSpec::default(),
            max_grad_norm: 1.0,
            router_aux_loss_coef: 0.0,
            deterministic: false,
            activation_checkpointing: None,
            reshard_after_forward: true,
            unsharded_layers: None,
            offload: OffloadSpec::default(),
            seed: 42,
            max_consecutive_non_finite: 5,
            evaluate_every: 10,
            evaluate_before: true,
        }
    }
}

/// Token budgets, offload and precision of roles other than the actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RolesSpec {
    /// Settings of the critic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticRoleSpec>,
    /// Settings of the reference policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<ScoringRoleSpec>,
    /// Settings of reward models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_models: Option<ScoringRoleSpec>,
}

/// Token budgets, offload and precision of a role that is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CriticRoleSpec {
    /// Maximum number of tokens of one forward and backward pass on one rank (verl's
    /// `critic.ppo_max_token_len_per_gpu`), where `workers.mesh.criticSp` ranks share them; by default
    /// `maxTokensPerMicroBatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_tokens_per_micro_batch: Option<u32>,
    /// Maximum number of tokens of one forward pass without gradients, for values (verl's
    /// `critic.forward_max_token_len_per_gpu`), shared likewise; by default `maxLogprobTokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_forward_tokens: Option<u32>,
    /// Offload of the critic (verl's `critic.model.fsdp_config.param_offload` and `optimizer_offload`); by
    /// default the actor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadSpec>,
    /// Compute dtype of the critic (verl's `critic.model.fsdp_config.mixed_precision`); weights, gradients
    /// and optimizer state are kept in fp32. By default, and with `Auto`, that of the actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
}

/// Token budget, offload and precision of a role that only scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScoringRoleSpec {
    /// Maximum number of tokens of one forward pass (verl's `ref.log_prob_max_token_len_per_gpu` and
    /// `reward_model.forward_max_token_len_per_gpu`); by default `maxLogprobTokens`. Passes of a reward model
    /// hold at least one of the longest sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_forward_tokens: Option<u32>,
    /// Whether the role's weights are offloaded between passes (verl's `ref.fsdp_config.param_offload`); by
    /// default as those of the actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_parameters: Option<bool>,
    /// Compute and parameter dtype of the role (verl's `ref.fsdp_config.model_dtype`). By default, and with
    /// `Auto`, the actor's compute dtype.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
}

impl RolesSpec {
    /// Returns the settings without token budgets, so that the actor's apply.
    #[must_use]
    pub fn without_budgets(self) -> Self {
        let scoring = |role: ScoringRoleSpec| ScoringRoleSpec { max_forward_tokens: None, ..role };
        let critic = self.critic.map(|role| CriticRoleSpec {
            max_tokens_per_micro_batch: None,
            max_forward_tokens: None,
            ..role
        });
        Self {
            critic,
            reference: self.reference.map(scoring),
            reward_models: self.reward_models.map(scoring),
        }
    }
}

impl TrainingSpec {
    /// Settings of the critic; empty by default.
    pub(crate) fn critic_role(&self) -> CriticRoleSpec {
        self.roles.and_then(|roles| roles.critic).unwrap_or_default()
    }

    /// Settings of the reference policy; empty by default.
    pub(crate) fn reference_role(&self) -> ScoringRoleSpec {
        self.roles.and_then(|roles| roles.reference).unwrap_or_default()
    }
}

/// State that is offloaded from the device between uses: to pinned memory of a GPU's host, or with a CPU to
/// unlinked files of the run folder, which must be on a disk and not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OffloadSpec {
    /// Whether weights are offloaded, 4 bytes each, those of a reference policy and reward models too. A
    /// layer is on the device while it computes, and the next one is prefetched.
    pub parameters: bool,
    /// Whether optimizer moments are offloaded, 8 bytes for each trained weight; those of one tensor after
    /// the other are fetched for its update.
    pub optimizer: bool,
    /// Whether the layers' inputs are offloaded between forward and backward pass; needs
    /// `activationCheckpointing`, without which layers keep more.
    pub activations: bool,
}

/// Compute dtype of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Precision {
    /// `Bf16` on a GPU, `Fp32` on a CPU.
    #[default]
    Auto,
    /// 32-bit floating point.
    Fp32,
    /// 16 bits with the range of fp32 (bfloat16); reductions in fp32.
    Bf16,
    /// 16 bits with more digits and less range (IEEE half); reductions in fp32. In training the loss is
    /// scaled up before the backward pass by a factor that grows until a gradient overflows; the update that
    /// does is skipped and the factor halved (dynamic loss scaling).
    Fp16,
}

impl Precision {
    /// Replaces `Auto` by the dtype for a device.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        match (self, device) {
            (Self::Auto, Device::Cuda) => Self::Bf16,
            (Self::Auto, Device::Cpu | Device::Auto) => Self::Fp32,
            (decided, _) => decided,
        }
    }

    /// Bytes of an element; those of fp32 for `Auto`.
    pub fn width(self) -> u64 {
        match self {
            Self::Auto | Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
        }
    }
}

/// Precision of fp32 matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MatmulPrecision {
    /// Products in fp32, on GPUs too.
    #[default]
    Highest,
    /// Products of fp32 split into three bfloat16 products, or TF32 on a GPU.
    High,
    /// Products in bfloat16 with fp32 sums, where the machine has units for it; TF32 on a GPU.
    Medium,
}

/// Settings of the AdamW optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OptimizerSpec {
    /// Peak learning rate; by default 1e-6, or that of `algorithm.preset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: Option<f64>,
    /// Decay rates of the mean of gradients and of the mean of their squares.
    #[schemars(inner(range(min = 0.0, max = 0.999999)))]
    pub betas: [f64; 2],
    /// Decoupled weight decay of matrices and adapters. Norms and biases are not decayed, as in transformers'
    /// `Trainer` and with it TRL; verl decays them too. By default 0.01, or that of `algorithm.preset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: Option<f64>,
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        Self { learning_rate: None, betas: [0.9, 0.999], weight_decay: None }
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleKind {
    /// The learning rate stays at its peak.
    Constant,
    /// The learning rate falls along half a cosine to `minRatio`, which it reaches one step after the last.
    Cosine,
    /// The learning rate falls linearly to `minRatio`, which it reaches one step after the last.
    Linear,
}

/// Learning rate schedule, in steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Shape of the learning rate after the warm-up; by default `Constant`, or that of `algorithm.preset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ScheduleKind>,
    /// Number of steps before the peak, over which the learning rate rises linearly; the first has 1 /
    /// (steps + 1) of the peak.
    #[schemars(range(min = 0, max = 100000000))]
    pub warmup_steps: u64,
    /// Warm-up as a fraction of all steps, rounded down, in place of `warmupSteps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: Option<f64>,
    /// Fraction of the peak that `Cosine` and `Linear` reach one step after the last.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_ratio: f64,
}
