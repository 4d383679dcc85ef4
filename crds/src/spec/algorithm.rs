//! `spec.algorithm`: which algorithm learns from the rewards. What each preset means is in
//! [`crate::resolved`], not here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// How the actor is held near the reference policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlSpec>,
    /// Correction for the difference between the policy that sampled and the one that is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_correction: Option<ImportanceCorrectionSpec>,
    /// Sample anew for groups whose rewards are all equal. The DAPO preset sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
}

/// The presets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AlgorithmKind {
    /// Supervised training on demonstrations alone.
    #[serde(rename = "SFT")]
    Sft,
    /// Group-relative policy optimization (<https://arxiv.org/abs/2402.03300>).
    #[serde(rename = "GRPO")]
    Grpo,
    /// GRPO without its length and difficulty bias (<https://arxiv.org/abs/2503.20783>).
    #[serde(rename = "DrGRPO")]
    DrGrpo,
    /// Higher upper clip, dynamic sampling, token-level loss, overlong shaping (<https://arxiv.org/abs/2503.14476>).
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
    pub const ALL: [Self; 9] = [
        Self::Sft,
        Self::Grpo,
        Self::DrGrpo,
        Self::Dapo,
        Self::Rloo,
        Self::ReinforcePlusPlus,
        Self::ReMax,
        Self::Gspo,
        Self::Cispo,
    ];
}

impl ColdStartSpec {
    fn default_batch_size() -> u32 {
        64
    }
    fn default_learning_rate() -> f64 {
        1e-3
    }
}

/// The advantage estimators that need no critic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdvantageEstimator {
    /// Reward minus the group's mean, divided by its standard deviation if `normalizeByStd`.
    Grpo,
    /// Only the best of a group, by its distance to the second best (pass@k).
    GrpoPassk,
    /// Reward minus the mean of the others in the group.
    Rloo,
    /// Discounted return per token, whitened over the batch.
    ReinforcePlusPlus,
    /// Reward minus the group's mean, whitened over the batch.
    ReinforcePlusPlusBaseline,
    /// Return minus the reward of the greedy completion.
    ReMax,
    /// Reward minus the length-weighted mean of the group.
    Opo,
    /// Reward minus the group's mean, scaled up by the share of samples without reward.
    Gpg,
    /// Return minus the baseline of least variance at each token.
    OptimalTokenBaseline,
    /// Each reward function normalised within the group on its own, then summed and whitened.
    Gdpo,
}

/// How rewards become advantages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdvantageSpec {
    /// The estimator; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<AdvantageEstimator>,
    /// Divide by the group's standard deviation (`Grpo` and `GrpoPassk` only); by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize_by_std: Option<bool>,
    /// Discount per token (`ReinforcePlusPlus` only); by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: Option<f64>,
}

/// The policy losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyLossKind {
    /// PPO's clipped ratio of each token.
    Vanilla,
    /// The clipped ratio of the whole sequence.
    Gspo,
    /// A soft gate instead of a clip.
    Sapo,
    /// The log-prob times the advantage, without a ratio.
    Gpg,
    /// The geometric mean of the clipped ratios.
    GeoMean,
    /// The clipped ratio as a constant weight of the log-prob.
    Cispo,
    /// Updates only within a bound on the total variation.
    DppoTv,
    /// Updates only within a bound on the binary KL.
    DppoKl,
    /// A quadratic penalty on the log-ratio.
    Dro,
}

impl PolicyLossKind {
    /// The losses that are defined as a mean over sequences.
    pub const BY_SEQUENCE: &[Self] = &[Self::Gspo, Self::Sapo, Self::GeoMean];
}

/// How the losses of tokens become the loss of a batch. All denominators are those of the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LossAggregation {
    /// The mean over all tokens.
    TokenMean,
    /// The sum over all tokens.
    TokenSum,
    /// The mean over sequences of the mean over their tokens.
    SequenceMeanTokenMean,
    /// The mean over sequences of the sum over their tokens.
    SequenceMeanTokenSum,
    /// The same, divided by a constant length.
    SequenceMeanTokenSumNorm,
}

/// How advantages become a loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossSpec {
    /// The policy loss; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLossKind>,
    /// How far the ratio may fall below 1; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub clip_low: Option<f64>,
    /// How far the ratio may rise above 1; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub clip_high: Option<f64>,
    /// Bound on the loss of tokens with a negative advantage, as a multiple of it (`Vanilla`); by default none.
    /// For `DppoTv` and `DppoKl` the cap on the importance weight; by default 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub dual_clip: Option<f64>,
    /// How the losses of tokens become the loss of a batch; by default the preset's. `Gspo`, `Sapo` and `GeoMean`
    /// are defined with `SequenceMeanTokenMean` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<LossAggregation>,
    /// The constant length of `SequenceMeanTokenSumNorm`; by default `rollout.maxCompletionTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16777216))]
    pub normalization_tokens: Option<u32>,
    /// Temperature of `Sapo`'s gate for positive advantages; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1000.0))]
    pub sapo_tau_positive: Option<f64>,
    /// Temperature of `Sapo`'s gate for negative advantages; by default 1.05.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1000.0))]
    pub sapo_tau_negative: Option<f64>,
    /// Strength of `Dro`'s quadratic penalty; by default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1000.0))]
    pub dro_beta: Option<f64>,
    /// Factor of the entropy that is subtracted from the loss; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -10.0, max = 10.0))]
    pub entropy_coefficient: Option<f64>,
}

/// Where the KL divergence to the reference policy acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KlPlacement {
    /// Nowhere; no reference policy is needed.
    None,
    /// It is added to the loss.
    Loss,
    /// It is subtracted from each token's reward.
    Reward,
}

/// Estimators of the KL divergence from one sample (<http://joschu.net/blog/kl-approx.html>), d = actor - reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KlEstimator {
    /// d.
    K1,
    /// d, with the gradient of K2.
    K1StraightThrough,
    /// |d|.
    Abs,
    /// d^2 / 2.
    K2,
    /// exp(-d) - 1 + d.
    K3,
    /// exp(-d) - 1 + d, with the gradient of K2, which is that of the divergence.
    K3StraightThrough,
}

/// How the actor is held near the reference policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlSpec {
    /// Where it acts; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<KlPlacement>,
    /// The estimator; by default `K3StraightThrough` in the loss and `K1` in the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<KlEstimator>,
    /// Its factor; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub coefficient: Option<f64>,
    /// Adapt the factor so that the divergence stays near a target (<https://arxiv.org/abs/1909.08593>, section 2.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKlSpec>,
}

/// A controller of the KL factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdaptiveKlSpec {
    /// The divergence to stay near.
    #[schemars(range(min = 1e-9, max = 1000.0))]
    pub target: f64,
    /// Samples over which the factor reacts.
    #[serde(default = "AdaptiveKlSpec::default_horizon")]
    #[schemars(range(min = 1, max = 1000000000))]
    pub horizon: u64,
}

impl AdaptiveKlSpec {
    fn default_horizon() -> u64 {
        10_000
    }
}

/// Whether a correction weighs tokens or sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImportanceLevel {
    /// Each token by its own ratio.
    #[default]
    Token,
    /// Each token by the ratio of its sequence.
    Sequence,
}

/// Weights exp(old - rollout log-prob) on the loss, truncated from above, or zero outside of a band.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImportanceCorrectionSpec {
    /// Tokens or sequences.
    pub level: ImportanceLevel,
    /// Largest weight.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub threshold: f64,
    /// Smallest weight; given it, weights outside of the two become 0 (IcePop), else only truncated from above.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub lower_threshold: Option<f64>,
    /// Divide by the mean weight of the batch.
    pub normalize: bool,
    /// Mask tokens or sequences whose policies differ too much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejection: Option<RejectionSpec>,
}

impl Default for ImportanceCorrectionSpec {
    fn default() -> Self {
        Self {
            level: ImportanceLevel::Token,
            threshold: 2.0,
            lower_threshold: None,
            normalize: false,
            rejection: None,
        }
    }
}

/// What a rejection rule measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RejectionStatistic {
    /// K1 of each token.
    TokenK1,
    /// K2 of each token.
    TokenK2,
    /// K3 of each token.
    TokenK3,
    /// The sum of K1 over a sequence.
    SequenceSumK1,
    /// The sum of K2 over a sequence.
    SequenceSumK2,
    /// The sum of K3 over a sequence.
    SequenceSumK3,
    /// The mean of K1 over a sequence.
    SequenceMeanK1,
    /// The mean of K2 over a sequence.
    SequenceMeanK2,
    /// The mean of K3 over a sequence.
    SequenceMeanK3,
    /// The largest K2 of a sequence.
    SequenceMaxK2,
    /// The largest K3 of a sequence.
    SequenceMaxK3,
}

/// When a token or sequence is masked out of the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RejectionSpec {
    /// What is measured.
    pub statistic: RejectionStatistic,
    /// Largest accepted value; for K1 a ratio of probabilities.
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub upper: f64,
    /// Smallest accepted ratio, for K1 only; by default 1 / `upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub lower: Option<f64>,
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
