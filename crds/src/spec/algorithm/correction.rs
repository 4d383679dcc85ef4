//! `spec.algorithm.importanceCorrection`: correction for the difference between the policy that sampled and
//! the trained one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Level of the importance weights: tokens or sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImportanceLevel {
    /// Each token is weighted by its own ratio.
    #[default]
    Token,
    /// Each token is weighted by the ratio of its sequence.
    Sequence,
}

/// Importance weights exp(old - rollout log-prob) of the loss, truncated from above, or 0 outside a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImportanceCorrectionSpec {
    /// Level of the weights: tokens or sequences.
    pub level: ImportanceLevel,
    /// Upper bound of the weights.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub threshold: f64,
    /// Lower bound of the weights. With it, weights outside the two bounds become 0 (IcePop); without it,
    /// weights are only truncated from above.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub lower_threshold: Option<f64>,
    /// Whether weights are divided by their mean over the batch.
    pub normalize: bool,
    /// Rejection of tokens or sequences on which the two policies differ too much; they are masked out of the
    /// loss.
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

/// Statistic that a rejection rule bounds.
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

/// Rule that masks tokens or sequences out of the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RejectionSpec {
    /// Statistic that the rule bounds.
    pub statistic: RejectionStatistic,
    /// Largest accepted value; for K1 a ratio of probabilities.
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub upper: f64,
    /// Smallest accepted ratio, for K1 only; by default 1 / `upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub lower: Option<f64>,
}
