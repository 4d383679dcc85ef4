//! Training settings, with the length as an enum and all token budgets as numbers.

use serde::Serialize;

use crate::presets::Preset;
use crate::spec::{
    DataSource, DataSpec, DatasetSpec, MatmulPrecision, OffloadSpec, Precision, RLTrainingJobSpec, RolesSpec,
    RolloutSpec, ScheduleKind, ScheduleSpec, TaskSpec,
};

/// Range of the default micro-batch in tokens: enough rows to keep matrix products busy, and few enough that
/// their activations do not outgrow the weights.
const MICRO_BATCH_TOKENS: std::ops::RangeInclusive<u32> = 1024..=4096;

/// Training settings with every default filled in. See [`crate::spec::TrainingSpec`] for the fields' meaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are documented once, in TrainingSpec")]
pub struct ResolvedTraining {
    /// Length of the training, in steps or epochs.
    #[serde(flatten)]
    pub length: TrainingLength,
    pub prompts_per_step: u32,
    pub prompts_per_update: u32,
    pub epochs_per_batch: u32,
    pub max_tokens_per_micro_batch: u32,
    pub max_logprob_tokens: u32,
    /// Settings of roles as given. A missing value means that of the actor, see
    /// [`Self::critic_micro_batch_tokens`] and similar methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<RolesSpec>,
    pub precision: Precision,
    pub matmul_precision: MatmulPrecision,
    pub optimizer: ResolvedOptimizer,
    pub schedule: ResolvedSchedule,
    pub max_grad_norm: f64,
    pub router_aux_loss_coef: f64,
    pub deterministic: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_checkpointing: Option<bool>,
    pub reshard_after_forward: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsharded_layers: Option<u32>,
    pub offload: OffloadSpec,
    pub seed: u64,
    pub max_consecutive_non_finite: u32,
    pub evaluate_every: u64,
    pub evaluate_before: bool,
}

/// Settings of AdamW.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedOptimizer {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decay rates of the mean of gradients and of the mean of their squares.
    pub betas: [f64; 2],
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// Learning rate over time, in steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedSchedule {
    /// Shape after the warm-up.
    pub kind: ScheduleKind,
    /// Length of the linear rise to the peak.
    #[serde(flatten)]
    pub warmup: Warmup,
    /// Fraction of the peak that the decay reaches one step after the last.
    pub min_ratio: f64,
}

/// Length of the learning rate's linear rise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Warmup {
    /// Number of steps.
    #[serde(rename = "warmupSteps")]
    Steps(u64),
    /// Fraction of all steps, 0 to 1.
    #[serde(rename = "warmupRatio")]
    Ratio(f64),
}

impl Warmup {
    fn resolve(spec: &ScheduleSpec) -> Self {
        spec.warmup_ratio.map_or(Self::Steps(spec.warmup_steps), Self::Ratio)
    }

    /// Number of warm-up steps in a training of `num_steps`; a ratio leaves at least one step at the peak.
    pub fn num_steps(self, num_steps: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a part of a number of steps"
            )]
            Self::Ratio(ratio) => ((num_steps as f64 * ratio) as u64).min(num_steps.saturating_sub(1)),
        }
    }
}

/// Length of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TrainingLength {
    /// Number of steps.
    Steps(u64),
    /// Number of passes over the training prompts.
    Epochs(u32),
}

impl TrainingLength {
    /// Returns the number of steps when one pass has `num_prompts` prompts. An incomplete last batch of a
    /// pass is left out, but a data set smaller than one step still gives one step a pass.
    pub fn num_steps(self, num_prompts: u64, prompts_per_step: u32) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) => u64::from(epochs) * (num_prompts / u64::from(prompts_per_step)).max(1),
        }
    }
}

impl ResolvedTraining {
    pub(super) fn resolve(job: &RLTrainingJobSpec, preset: &Preset) -> Self {
        let spec = &job.training;
        let max_tokens_per_micro_batch =
            spec.max_tokens_per_micro_batch.unwrap_or_else(|| default_micro_batch(&job.data, &job.rollout));
        Self {
            length: match (spec.steps, spec.epochs) {
                (Some(steps), _) => TrainingLength::Steps(steps),
                (None, epochs) => TrainingLength::Epochs(epochs.unwrap_or(1)),
            },
            prompts_per_step: spec.prompts_per_step,
            prompts_per_update: spec.prompts_per_update.unwrap_or(spec.prompts_per_step),
            epochs_per_batch: spec.epochs_per_batch,
            max_tokens_per_micro_batch,
            max_logprob_tokens: spec
                .max_logprob_tokens
                .unwrap_or(max_tokens_per_micro_batch.saturating_mul(2)),
            roles: spec.roles,
            precision: spec.precision,
            matmul_precision: spec.matmul_precision,
            optimizer: ResolvedOptimizer {
                learning_rate: spec.optimizer.learning_rate.unwrap_or(preset.learning_rate),
                betas: spec.optimizer.betas,
                weight_decay: spec.optimizer.weight_decay.unwrap_or(preset.weight_decay),
            },
            schedule: ResolvedSchedule {
                kind: spec.schedule.kind.unwrap_or(preset.schedule),
                warmup: Warmup::resolve(&spec.schedule),
                min_ratio: spec.schedule.min_ratio,
            },
            max_grad_norm: spec.max_grad_norm,
            router_aux_loss_coef: spec.router_aux_loss_coef,
            deterministic: spec.deterministic,
            activation_checkpointing: spec.activation_checkpointing,
            reshard_after_forward: spec.reshard_after_forward,
            unsharded_layers: spec.unsharded_layers,
            offload: spec.offload,
            seed: spec.seed,
            max_consecutive_non_finite: spec.max_consecutive_non_finite,
            evaluate_every: spec.evaluate_every,
            evaluate_before: spec.evaluate_before,
        }
    }
}

impl ResolvedTraining {
    /// Number of layers, of `num_layers`, that stay gathered between forward and backward pass: the last
    /// ones. The very last always does, because its backward pass follows at once.
    pub fn layers_kept_unsharded(&self, num_layers: usize) -> usize {
        let last = self.unsharded_layers.map_or(1, |layers| layers as usize).min(num_layers);
        if self.reshard_after_forward { last } else { num_layers }
    }

    /// Token budget of a forward and backward pass of the critic.
    pub fn critic_micro_batch_tokens(&self) -> u32 {
        let own = self.roles.and_then(|roles| roles.critic?.max_tokens_per_micro_batch);
        own.unwrap_or(self.max_tokens_per_micro_batch)
    }

    /// Token budget of a pass for the critic's values.
    pub fn critic_forward_tokens(&self) -> u32 {
        let own = self.roles.and_then(|roles| roles.critic?.max_forward_tokens);
        own.unwrap_or(self.max_logprob_tokens)
    }

    /// Token budget of a pass for the reference policy's log-probs.
    pub fn reference_forward_tokens(&self) -> u32 {
        let own = self.roles.and_then(|roles| roles.reference?.max_forward_tokens);
        own.unwrap_or(self.max_logprob_tokens)
    }

    /// Token budget of a pass of a reward model; a single sequence may exceed it.
    pub fn reward_model_forward_tokens(&self) -> u32 {
        let own = self.roles.and_then(|roles| roles.reward_models?.max_forward_tokens);
        own.unwrap_or(self.max_logprob_tokens)
    }

    /// Compute dtype of the critic.
    pub fn critic_precision(&self) -> Precision {
        self.precision_or_own(self.roles.and_then(|roles| roles.critic?.precision))
    }

    /// Compute dtype of a frozen reference policy, in which its weights are also stored.
    pub fn reference_precision(&self) -> Precision {
        self.precision_or_own(self.roles.and_then(|roles| roles.reference?.precision))
    }

    /// Compute dtype of reward models, in which their weights are also stored.
    pub fn reward_model_precision(&self) -> Precision {
        self.precision_or_own(self.roles.and_then(|roles| roles.reward_models?.precision))
    }

    /// Returns a role's compute dtype, by default the actor's.
    fn precision_or_own(&self, of_role: Option<Precision>) -> Precision {
        of_role.filter(|given| *given != Precision::Auto).unwrap_or(self.precision)
    }

    /// Offload settings of the critic, by default the actor's.
    pub fn critic_offload(&self) -> OffloadSpec {
        self.roles.and_then(|roles| roles.critic?.offload).unwrap_or(self.offload)
    }

    /// Whether the weights of a frozen reference policy are offloaded.
    pub fn reference_is_offloaded(&self) -> bool {
        let own = self.roles.and_then(|roles| roles.reference?.offload_parameters);
        own.unwrap_or(self.offload.parameters)
    }

    /// Whether the weights of reward models are offloaded.
    pub fn reward_models_are_offloaded(&self) -> bool {
        let own = self.roles.and_then(|roles| roles.reward_models?.offload_parameters);
        own.unwrap_or(self.offload.parameters)
    }

    /// Whether weights of any role are offloaded. If so, the weights of all roles are gathered unit by unit.
    pub fn is_any_offloaded(&self) -> bool {
        self.offload.parameters
            || self.critic_offload().parameters
            || self.reference_is_offloaded()
            || self.reward_models_are_offloaded()
    }
}

/// Returns the default micro-batch: a full group within [`MICRO_BATCH_TOKENS`], and at least two of the
/// longest sequences.
fn default_micro_batch(data: &DataSpec, rollout: &RolloutSpec) -> u32 {
    let (prompt, completion) = (data.max_prompt_tokens, rollout.max_completion_tokens);
    let group = rollout.samples_per_prompt.saturating_mul(completion).saturating_add(prompt);
    let two = u32::try_from(rollout.longest_sequence(data)).unwrap_or(u32::MAX).saturating_mul(2);
    two.max(group.clamp(*MICRO_BATCH_TOKENS.start(), *MICRO_BATCH_TOKENS.end()))
}

impl DataSpec {
    /// Returns the source of the prompts.
    pub fn source(&self) -> DataSource<'_> {
        match &self.task {
            Some(task) => DataSource::Task(task),
            None => DataSource::Datasets,
        }
    }

    /// Returns the data sets for training, or the held-out ones. The files of `train`, or of `heldOut`, are
    /// one data set without a weight.
    pub fn sets(&self, held_out: bool) -> Vec<DatasetSpec> {
        let files = if held_out { &self.held_out } else { &self.train };
        let plain = DatasetSpec { files: files.clone(), held_out, ..DatasetSpec::default() };
        let plain = (!files.is_empty()).then_some(plain);
        plain
            .into_iter()
            .chain(self.datasets.iter().filter(|set| set.held_out == held_out).cloned())
            .collect()
    }

    /// Whether the job has held-out rows.
    pub fn has_held_out(&self) -> bool {
        match self.source() {
            DataSource::Task(task) => task.num_held_out > 0,
            DataSource::Datasets => !self.sets(true).is_empty(),
        }
    }
}

impl TaskSpec {
    /// Number of training prompts, at most `limit`.
    pub fn num_train_prompts(&self, limit: Option<u64>) -> u64 {
        limit.unwrap_or(u64::MAX).min(u64::from(self.num_train))
    }
}
