//! `spec.algorithm`: which algorithm learns from the rewards. What each preset means is in
//! [`crate::resolved`], not here.

mod correction;
mod critic;
mod kl;
mod loss;
mod preference;
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
pub use reward_model::*;

/// A preset by `kind`, every part of which can be overridden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlgorithmSpec {
    /// The preset.
    pub kind: AlgorithmKind,
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
    /// How pairs train a reward model; only with the kind `RewardModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelTrainingSpec>,
    /// Sample anew for groups whose rewards are all equal. The DAPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Draw the samples of a step anew before its updates, by weights that follow from their rewards. The
    /// PFPPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reweighting: Option<ReweightingSpec>,
}

/// The presets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AlgorithmKind {
    /// Supervised training on demonstrations alone.
    #[serde(rename = "SFT")]
    Sft,
    /// Proximal policy optimization with a critic (<https://arxiv.org/abs/1707.06347>).
    #[serde(rename = "PPO")]
    Ppo,
    /// Group-relative policy optimization (<https://arxiv.org/abs/2402.03300>).
    #[serde(rename = "GRPO")]
    Grpo,
    /// GRPO without its length and difficulty bias (<https://arxiv.org/abs/2503.20783>).
    #[serde(rename = "DrGRPO")]
    DrGrpo,
    /// Higher upper clip, dynamic sampling, token-level loss, overlong shaping
    /// (<https://arxiv.org/abs/2503.14476>).
    #[serde(rename = "DAPO")]
    Dapo,
    /// REINFORCE with the mean of the other samples as the baseline (<https://arxiv.org/abs/2402.14740>).
    #[serde(rename = "RLOO")]
    Rloo,
    /// REINFORCE with KL in the reward and batch-normalised returns (<https://arxiv.org/abs/2501.03262>).
    ReinforcePlusPlus,
    /// REINFORCE with the greedy completion's reward as the baseline (<https://arxiv.org/abs/2310.10505>).
    ReMax,
    /// Ratios of whole sequences (<https://arxiv.org/abs/2507.18071>).
    #[serde(rename = "GSPO")]
    Gspo,
    /// Clipped importance weights, no clipped tokens (<https://arxiv.org/abs/2506.13585>).
    #[serde(rename = "CISPO")]
    Cispo,
    /// Direct preference optimization on pairs of a data set (<https://arxiv.org/abs/2305.18290>).
    #[serde(rename = "DPO")]
    Dpo,
    /// Mean log-probs of a pair with a margin, without a reference (<https://arxiv.org/abs/2405.14734>).
    #[serde(rename = "SimPO")]
    SimPo,
    /// Contrastive preference optimization, without a reference (<https://arxiv.org/abs/2401.08417>).
    #[serde(rename = "CPO")]
    Cpo,
    /// Likelihood of the chosen completion and odds of the pair, without a reference
    /// (<https://arxiv.org/abs/2403.07691>).
    #[serde(rename = "ORPO")]
    Orpo,
    /// Completions that are each desirable or undesirable (<https://arxiv.org/abs/2402.01306>).
    #[serde(rename = "KTO")]
    Kto,
    /// DPO on the best and the worst of a rollout group (<https://arxiv.org/abs/2402.04792>).
    #[serde(rename = "OnlineDPO")]
    OnlineDpo,
    /// PPO for long chains of thought: pre-trained values, a lambda for each length, higher upper clip, and
    /// the likelihood of positive examples (<https://arxiv.org/abs/2504.05118>).
    #[serde(rename = "VAPO")]
    Vapo,
    /// PPO on samples that are drawn anew by the reliability of their rewards (policy filtration,
    /// <https://arxiv.org/abs/2409.06957>).
    #[serde(rename = "PFPPO")]
    PfPpo,
    /// A reward model from pairs of a data set: the model without its head for tokens, with a head of one
    /// number at the last token (Bradley-Terry, <https://arxiv.org/abs/2203.02155>).
    RewardModel,
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

impl AlgorithmKind {
    /// Every preset.
    pub const ALL: [Self; 19] = [
        Self::Sft,
        Self::Ppo,
        Self::Grpo,
        Self::DrGrpo,
        Self::Dapo,
        Self::Rloo,
        Self::ReinforcePlusPlus,
        Self::ReMax,
        Self::Gspo,
        Self::Cispo,
        Self::Dpo,
        Self::SimPo,
        Self::Cpo,
        Self::Orpo,
        Self::Kto,
        Self::OnlineDpo,
        Self::Vapo,
        Self::PfPpo,
        Self::RewardModel,
    ];

    /// The presets that learn from the preferences of a data set.
    pub const OFFLINE_PREFERENCE: [Self; 5] = [Self::Dpo, Self::SimPo, Self::Cpo, Self::Orpo, Self::Kto];

    /// Whether it learns from the preferences of a data set.
    pub fn is_offline_preference(self) -> bool {
        Self::OFFLINE_PREFERENCE.contains(&self)
    }

    /// Whether it learns from preferences, of a data set or of rewards.
    pub fn is_preference(self) -> bool {
        self.is_offline_preference() || self == Self::OnlineDpo
    }

    /// Whether it trains a model that judges, and no policy.
    pub fn trains_reward_model(self) -> bool {
        self == Self::RewardModel
    }

    /// Whether it samples the completions that it learns from.
    pub fn samples(self) -> bool {
        self != Self::Sft && !self.is_offline_preference() && !self.trains_reward_model()
    }
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

/// How rewards become the weights by which samples are drawn anew.
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

/// Sample anew until every group of the batch has differing rewards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DynamicSamplingSpec {
    /// What must differ within a group.
    pub metric: DynamicSamplingMetric,
    /// Rollouts of `promptsPerStep` prompts before the step goes on with what it has.
    #[schemars(range(min = 1, max = 1000))]
    pub max_batches: u32,
}

impl Default for DynamicSamplingSpec {
    fn default() -> Self {
        Self { metric: DynamicSamplingMetric::Score, max_batches: 10 }
    }
}
