//! `spec.algorithm.loss`: how advantages become a loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// PPO's clipped ratio, without the few tokens whose log-prob and advantage covary most (Clip-Cov).
    ClipCov,
    /// The ratio, with a penalty on the few tokens whose log-prob and advantage covary most (KL-Cov).
    KlCov,
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
    /// Bound on the loss of tokens with a negative advantage, as a multiple of it (`Vanilla`); by default
    /// none. For `DppoTv` and `DppoKl` the cap on the importance weight; by default 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub dual_clip: Option<f64>,
    /// How the losses of tokens become the loss of a batch; by default the preset's. `Gspo`, `Sapo` and
    /// `GeoMean` are defined with `SequenceMeanTokenMean` alone.
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
    /// Share of the tokens that `ClipCov` and `KlCov` hold back; by default 0.0002.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub covariance_ratio: Option<f64>,
    /// Strength of the penalty in `Dro` (by default 0.1) and `KlCov` (by default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1000.0))]
    pub penalty: Option<f64>,
    /// Factor of the entropy that is subtracted from the loss; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -10.0, max = 10.0))]
    pub entropy_coefficient: Option<f64>,
}
