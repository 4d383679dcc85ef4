//! `spec.algorithm.dynamicSampling` and `reweighting`: which samples of a step are learned from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Function from rewards to resampling weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReweightingMethod {
    /// Absolute value of the reward to the power of `power`.
    #[default]
    Pow,
    /// Weight 1 for the best and the worst reward of the step, 0 for others.
    MaxMin,
    /// Weight 0.4 for the best reward of the step, 0.1 for others.
    MaxRandom,
}

/// Resampling of as many samples as the step has, with replacement (verl's `use_pf_ppo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReweightingSpec {
    /// Function from rewards to weights (verl's `pf_ppo.reweight_method`).
    pub method: ReweightingMethod,
    /// Exponent of `Pow`, by default 2 (verl's `pf_ppo.weight_pow`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub power: Option<f64>,
}

/// Value that must differ within a group for the group to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DynamicSamplingMetric {
    /// Reward after clipping, before the penalty on length.
    #[default]
    Score,
    /// Reward with the penalty on length.
    Reward,
}

/// Sampling of further prompts until every group of the batch has rewards that differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DynamicSamplingSpec {
    /// Value that must differ within a group for the group to be kept.
    pub metric: DynamicSamplingMetric,
    /// Maximum number of rollouts of `promptsPerStep` prompts; then the step continues with the groups that
    /// it has.
    #[schemars(range(min = 1, max = 1000))]
    pub max_batches: u32,
}

impl Default for DynamicSamplingSpec {
    fn default() -> Self {
        Self { metric: DynamicSamplingMetric::Score, max_batches: 10 }
    }
}
