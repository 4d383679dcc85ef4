//! `spec.algorithm`: which algorithm learns from the rewards. Presets are in [`crate::presets`].

mod correction;
mod critic;
mod kl;
mod loss;
mod preference;
mod reference_sync;
mod reward_model;

pub use rlt_algorithms::advantage::AdvantageEstimatorKind;
use rlt_algorithms::declaration::Parameters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use correction::*;
pub use critic::*;
pub use kl::*;
pub use loss::*;
pub use preference::*;
pub use reference_sync::*;
pub use reward_model::*;

use crate::presets::Preset;
pub use crate::presets::{AlgorithmKind, LearnsFrom, PresetProject};

/// A preset by `kind`, every part of which can be overridden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlgorithmSpec {
    /// The preset.
    pub kind: AlgorithmKind,
    /// Take the defaults of another project instead of the papers': its clips, aggregation, KL, learning
    /// rate, weight decay and schedule, wherever the manifest says nothing of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<PresetProject>,
    /// Supervised training on the data's demonstrations before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartSpec>,
    /// How rewards become advantages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<AdvantageSpec>,
    /// How advantages become a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossSpec>,
    /// The critic that `Gae` and `LengthAdaptiveGae` compare with; only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticSpec>,
    /// How the actor is held near the reference policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlSpec>,
    /// Correction for the difference between the policy that sampled and the one that is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_correction: Option<ImportanceCorrectionSpec>,
    /// How preferences become a loss; only with the kinds that learn from preferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceSpec>,
    /// Move the reference policy towards the actor every few steps; only for kinds and losses that read a
    /// reference, and without `model.lora`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_sync: Option<ReferenceSyncSpec>,
    /// How pairs train a reward model; only with the kind `RewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelTrainingSpec>,
    /// How steps train a process reward model; only with the kind `ProcessReward`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_reward: Option<ProcessRewardTrainingSpec>,
    /// Sample further prompts in place of groups whose rewards are all equal. The DAPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Resample the samples of a step before its updates, by weights that follow from their rewards. The
    /// PFPPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reweighting: Option<ReweightingSpec>,
}

impl AlgorithmSpec {
    /// Returns the preset's values for completions of at most `max_completion_tokens` tokens, with those of
    /// `preset`.
    pub(crate) fn defaults(&self, max_completion_tokens: u32) -> Preset {
        let preset = self.kind.preset(max_completion_tokens);
        match self.preset {
            Some(project) => project.over(self.kind, preset),
            None => preset,
        }
    }
}

/// Supervised training before the first step of reinforcement learning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ColdStartSpec {
    /// Optimizer steps.
    #[schemars(range(min = 1, max = 10000000))]
    pub steps: u32,
    /// Demonstrations in one step.
    #[serde(default = "ColdStartSpec::default_batch_size")]
    #[schemars(range(min = 1, max = 1000000))]
    pub batch_size: u32,
    /// Learning rate, constant after a tenth of the steps.
    #[serde(default = "ColdStartSpec::default_learning_rate")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: f64,
}

impl ColdStartSpec {
    fn default_batch_size() -> u32 {
        64
    }
    fn default_learning_rate() -> f64 {
        1e-3
    }
}

/// How rewards become advantages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvantageSpec {
    /// The estimator; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<AdvantageEstimatorKind>,
    /// The parameters of the estimator; by default the preset's, else the estimator's own.
    #[serde(flatten)]
    pub parameters: Parameters<AdvantageEstimatorKind>,
}

/// How rewards become the weights of resampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReweightingMethod {
    /// The reward's absolute value to the power of `power`.
    #[default]
    Pow,
    /// 1 for the best and the worst reward of the step, 0 for others.
    MaxMin,
    /// 0.4 for the best reward of the step, 0.1 for others.
    MaxRandom,
}

/// Draw as many samples as the step has, with replacement (verl's `use_pf_ppo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReweightingSpec {
    /// How rewards become weights (verl's `pf_ppo.reweight_method`).
    pub method: ReweightingMethod,
    /// The exponent of `Pow`, by default 2 (verl's `pf_ppo.weight_pow`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub power: Option<f64>,
}

/// What must differ within a group for it to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DynamicSamplingMetric {
    /// The reward before shaping by length, clipping included.
    #[default]
    Score,
    /// The reward after shaping.
    Reward,
}

/// Sample further prompts until every group of the batch has differing rewards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DynamicSamplingSpec {
    /// What must differ within a group.
    pub metric: DynamicSamplingMetric,
    /// Rollouts of `promptsPerStep` prompts before the step continues with the groups that it has.
    #[schemars(range(min = 1, max = 1000))]
    pub max_batches: u32,
}

impl Default for DynamicSamplingSpec {
    fn default() -> Self {
        Self { metric: DynamicSamplingMetric::Score, max_batches: 10 }
    }
}
