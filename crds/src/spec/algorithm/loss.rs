//! `spec.algorithm.loss`: how advantages become a loss.

use rlt_algorithms::declaration::Parameters;
pub use rlt_algorithms::loss::PolicyLossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[serde(rename_all = "camelCase")]
pub struct LossSpec {
    /// The policy loss; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLossKind>,
    /// The parameters of the policy loss; by default the preset's, else the loss's own.
    #[serde(flatten)]
    pub parameters: Parameters<PolicyLossKind>,
    /// How the losses of tokens become the loss of a batch; by default the preset's. `Gspo`, `Sapo` and
    /// `GeoMean` are defined with `SequenceMeanTokenMean` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<LossAggregation>,
    /// The constant length of `SequenceMeanTokenSumNorm`; by default `rollout.maxCompletionTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16777216))]
    pub normalization_tokens: Option<u32>,
    /// Factor of the entropy that is subtracted from the loss; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -10.0, max = 10.0))]
    pub entropy_coefficient: Option<f64>,
    /// Factor of the mean negative log-likelihood of positive examples, which is added to the loss (VAPO,
    /// section 4.3); by default the preset's, 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub positive_coefficient: Option<f64>,
    /// Completions with a reward above it are positive examples; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub positive_threshold: Option<f64>,
}
