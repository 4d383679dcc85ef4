//! `spec.algorithm`: the learning algorithm, by a preset and what overrides it. Presets are in
//! [`crate::presets`].

mod correction;
mod critic;
mod kl;
mod loss;
mod preference;
mod reference_sync;
mod reward_model;
mod sampling;

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
pub use sampling::*;

use crate::presets::Preset;
pub use crate::presets::{AlgorithmKind, LearnsFrom, PresetProject};

/// Learning algorithm: a preset by `kind`, each part of which can be overridden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlgorithmSpec {
    /// Preset of the algorithm, whose values the other fields of this section override.
    pub kind: AlgorithmKind,
    /// Project whose defaults replace those of the papers: its clips, aggregation, KL, learning rate, weight
    /// decay and schedule, where the manifest does not set them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<PresetProject>,
    /// Supervised training on the data's demonstrations before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartSpec>,
    /// Advantage estimator and its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<AdvantageSpec>,
    /// Policy loss, its aggregation and its auxiliary terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossSpec>,
    /// Critic of the estimators `Gae` and `LengthAdaptiveGae`; only for these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticSpec>,
    /// KL divergence to the reference policy: placement, estimator and coefficient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlSpec>,
    /// Importance-sampling correction for the difference between the policy that sampled and the one that is
    /// trained (verl's `rollout_correction`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_correction: Option<ImportanceCorrectionSpec>,
    /// Preference loss and its parameters; only for the kinds that learn from preferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceSpec>,
    /// Periodic update of the reference policy towards the actor; only for kinds and losses that read a
    /// reference, and without `model.lora`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_sync: Option<ReferenceSyncSpec>,
    /// Training of a reward model from pairs; only for the kind `RewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelTrainingSpec>,
    /// Training of a process reward model from labelled steps; only for the kind `ProcessReward`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_reward: Option<ProcessRewardTrainingSpec>,
    /// Dynamic sampling: groups whose rewards are all equal are replaced by groups of further prompts. The
    /// DAPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Resampling of a step's samples before its updates, by weights that are computed from their rewards.
    /// The PFPPO preset sets it.
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
    /// Number of optimizer steps.
    #[schemars(range(min = 1, max = 10000000))]
    pub steps: u32,
    /// Number of demonstrations per step.
    #[serde(default = "ColdStartSpec::default_batch_size")]
    #[schemars(range(min = 1, max = 1000000))]
    pub batch_size: u32,
    /// Peak learning rate: it rises linearly over the first tenth of the steps, rounded down, and then stays
    /// constant; by default 1e-3 with `model.architecture`, else 2e-4 with `model.lora`, else 2e-5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: Option<f64>,
}

impl ColdStartSpec {
    fn default_batch_size() -> u32 {
        64
    }
}

/// Advantage estimator and its parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvantageSpec {
    /// Advantage estimator; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<AdvantageEstimatorKind>,
    /// Parameters of the estimator; by default the preset's, else the estimator's own.
    #[serde(flatten)]
    pub parameters: Parameters<AdvantageEstimatorKind>,
}
