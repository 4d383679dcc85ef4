//! `spec.algorithm.loss`: how advantages become a loss.

use rlt_algorithms::declaration::Parameters;
pub use rlt_algorithms::loss::PolicyLossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Aggregation of token losses to the loss of a batch. All denominators are those of the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LossAggregation {
    /// Mean over all tokens (verl's `token-mean`).
    TokenMean,
    /// Sum over all tokens (verl's `token-sum`).
    TokenSum,
    /// Mean over sequences of the mean over their tokens (verl's `seq-mean-token-mean`).
    SequenceMeanTokenMean,
    /// Mean over sequences of the sum over their tokens (verl's `seq-mean-token-sum`).
    SequenceMeanTokenSum,
    /// Mean over sequences of the sum over their tokens, divided by the constant length `normalizationTokens`
    /// (verl's `seq-mean-token-sum-norm`).
    SequenceMeanTokenSumNorm,
}

/// Policy loss, its aggregation and its auxiliary terms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LossSpec {
    /// Policy loss; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLossKind>,
    /// Parameters of the policy loss; by default the preset's, else the loss's own.
    #[serde(flatten)]
    pub parameters: Parameters<PolicyLossKind>,
    /// Aggregation of token losses to the loss of a batch; by default the preset's. `Gspo`, `Sapo` and
    /// `GeoMean` are defined with `SequenceMeanTokenMean` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<LossAggregation>,
    /// Constant length of `SequenceMeanTokenSumNorm` in tokens; by default `rollout.maxCompletionTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16777216))]
    pub normalization_tokens: Option<u32>,
    /// Coefficient of the entropy, which is subtracted from the loss; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -10.0, max = 10.0))]
    pub entropy_coefficient: Option<f64>,
    /// Coefficient of the mean negative log-likelihood of positive examples, which is added to the loss
    /// (VAPO, section 4.3); by default the preset's, 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub positive_coefficient: Option<f64>,
    /// Reward above which a completion is a positive example; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub positive_threshold: Option<f64>,
}
