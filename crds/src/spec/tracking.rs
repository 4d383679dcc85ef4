//! `spec.tracking`: where metrics go. `metrics.jsonl` is always written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where metrics go. No tracker can delay or stop the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrackingSpec {
    /// Show progress on the terminal.
    pub console: bool,
    /// Write TensorBoard event files to `events/`.
    pub tensorboard: bool,
    /// Serve `/metrics` for Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSpec>,
    /// Completions of each step that are written to `completions.jsonl`.
    #[schemars(range(min = 0, max = 100000))]
    pub completions_per_step: u32,
    /// Write `report.html` at the end.
    pub report: bool,
}

impl Default for TrackingSpec {
    fn default() -> Self {
        Self { console: true, tensorboard: true, prometheus: None, completions_per_step: 4, report: true }
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
