//! `spec.algorithm.kl`: how the actor is held near the reference policy.

pub use rlt_algorithms::kl::KlEstimator;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// How the actor is held near the reference policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlSpec {
    /// Where it acts; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<KlPlacement>,
    /// The estimator; by default `K1` in the reward, and in the loss `K3StraightThrough`, or `K3`
    /// with `algorithm.preset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<KlEstimator>,
    /// Its factor; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub coefficient: Option<f64>,
    /// Adapt the factor so that the divergence stays near a target (<https://arxiv.org/abs/1909.08593>,
    /// section 2.2).
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
