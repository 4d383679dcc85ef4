//! `spec.tracking`: where metrics go besides the run folder and the terminal, where they always go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where metrics go. No tracker can delay or stop the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrackingSpec {
    /// Serve `/metrics` for Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSpec>,
    /// Completions of each step, and of each held-out evaluation, that are written to `completions.jsonl`. Rollout
    /// groups are written whole: the first ones, until there are so many completions.
    #[schemars(range(min = 0, max = 100000))]
    pub completions_per_step: u32,
}

impl Default for TrackingSpec {
    fn default() -> Self {
        Self { prometheus: None, completions_per_step: 4 }
    }
}

/// A Prometheus endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrometheusSpec {
    /// The port to listen on; 0 for any free one.
    #[schemars(range(min = 0, max = 65535))]
    pub port: u16,
}
