//! `spec.algorithm.preference`: how preferred and rejected completions become a loss.

use rlt_algorithms::declaration::Parameters;
pub use rlt_algorithms::preference::PreferenceLossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// F-divergence between actor and reference, whose derivative is the score of a completion
/// (<https://arxiv.org/abs/2309.16240>). u is the log-ratio of actor to reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreferenceDivergence {
    /// The score is u: plain DPO.
    #[default]
    ReverseKl,
    /// The score is 1 - exp(-u).
    ForwardKl,
    /// The score is log 2 + log sigmoid(u).
    JensenShannon,
    /// The score is (exp((alpha - 1) u) - 1) / (alpha - 1).
    Alpha,
}

/// One term of a weighted sum of preference losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedLossSpec {
    /// Loss of a pair of completions.
    pub loss: PreferenceLossKind,
    /// Weight of the loss in the sum; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub weight: Option<f64>,
    /// Parameters of the loss; by default its own.
    #[serde(flatten)]
    pub parameters: Parameters<PreferenceLossKind>,
}

/// Preference loss and its parameters; only for the kinds `DPO`, `SimPO`, `CPO`, `ORPO`, `KTO` and
/// `OnlineDPO`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreferenceSpec {
    /// Loss of a pair of completions; by default the preset's. The kind `KTO` has no pairs and is itself the
    /// loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<PreferenceLossKind>,
    /// Parameters of the loss; by default its own.
    #[serde(flatten)]
    pub parameters: Parameters<PreferenceLossKind>,
    /// Weighted sum of several losses of a pair, in place of `loss` and its parameters: MPO
    /// (<https://arxiv.org/abs/2411.10442>) is `Sigmoid` with weight 0.8 and `BcoPair` with 0.2, with an
    /// `sftWeight` of 1. Rewards in metrics are those of the first loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub losses: Vec<WeightedLossSpec>,
    /// Divergence whose derivative scores completions, for losses of the difference of two scores; by default
    /// `ReverseKl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<PreferenceDivergence>,
    /// Order of the divergence `Alpha`; by default 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -10.0, max = 10.0))]
    pub divergence_alpha: Option<f64>,
    /// Weight of tokens beyond the length of the pair's shorter completion (LD-DPO,
    /// <https://arxiv.org/abs/2409.06411>); by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub length_desensitization: Option<f64>,
    /// Whether a pair is weighted by how likely the actor is to sample it (WPO,
    /// <https://arxiv.org/abs/2406.11827>); by default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weigh_by_policy: Option<bool>,
    /// Weight of the negative log-likelihood of a chosen token, which is added to the loss (RPO,
    /// <https://arxiv.org/abs/2404.19733>); by default 0, with `CPO` and `ORPO` 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub sft_weight: Option<f64>,
    /// Weight of desirable completions, for `KTO`; by default 1. Weight times number of one kind should be 1
    /// to 4/3 of the other's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub desirable_weight: Option<f64>,
    /// Weight of undesirable completions, for `KTO`; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub undesirable_weight: Option<f64>,
    /// Whether `KTO` compares completions with the reference point z, which is measured in additional passes
    /// on completions of other prompts; by default true. With false (TRL's `apo_zero_unpaired`) they are
    /// compared with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_point: Option<bool>,
}
