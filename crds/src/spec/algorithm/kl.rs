//! `spec.algorithm.kl`: how the actor is held near the reference policy.

pub use rlt_algorithms::kl::KlEstimator;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement of the KL divergence to the reference policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KlPlacement {
    /// No KL term, so no reference policy is needed for it.
    None,
    /// The divergence is added to the loss.
    Loss,
    /// The divergence is subtracted from each token's reward.
    Reward,
}

/// KL divergence between actor and reference policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlSpec {
    /// Placement of the divergence; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<KlPlacement>,
    /// Estimator of the divergence; by default `K1` in the reward, and in the loss `K3StraightThrough`, or
    /// `K3` with `algorithm.preset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<KlEstimator>,
    /// Coefficient of the divergence, the initial one if it is adaptive; by default the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub coefficient: Option<f64>,
    /// Adaptive coefficient, which keeps the divergence near a target (<https://arxiv.org/abs/1909.08593>,
    /// section 2.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKlSpec>,
}

/// Controller that adapts the KL coefficient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdaptiveKlSpec {
    /// Target of the divergence, in nats per token.
    #[schemars(range(min = 1e-9, max = 1000.0))]
    pub target: f64,
    /// Number of samples over which the coefficient reacts; a larger one adapts it more slowly.
    #[serde(default = "AdaptiveKlSpec::default_horizon")]
    #[schemars(range(min = 1, max = 1000000000))]
    pub horizon: u64,
}

impl AdaptiveKlSpec {
    fn default_horizon() -> u64 {
        10_000
    }
}
