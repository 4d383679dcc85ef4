//! `spec.tracking`: where metrics go besides the run folder and the terminal, where they always go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Destinations of metrics. No tracker can delay or stop the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrackingSpec {
    /// Prometheus endpoint `/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSpec>,
    /// Run on a tracking server of MLflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<MlflowSpec>,
    /// Run on a server of Trackio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trackio: Option<TrackioSpec>,
    /// Offline run of Weights & Biases in the run folder, below `wandb`; `wandb sync` uploads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wandb: Option<WandbSpec>,
    /// Number of completions of each step, and of each held-out evaluation, that are written to
    /// `completions.jsonl`. Full rollout groups are written, the first ones, until there are this many
    /// completions.
    #[schemars(range(min = 0, max = 100000))]
    pub completions_per_step: u32,
}

impl Default for TrackingSpec {
    fn default() -> Self {
        Self { prometheus: None, mlflow: None, trackio: None, wandb: None, completions_per_step: 4 }
    }
}

/// Prometheus endpoint of the trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrometheusSpec {
    /// Port to listen on; 0 for any free one.
    #[schemars(range(min = 0, max = 65535))]
    pub port: u16,
}

/// Run on a tracking server of MLflow, by its REST API. Credentials are read from the environment, which
/// `workers.env` sets: `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
/// While the server does not answer, metrics of steps are held back; `rlctl track` sends what is missing at
/// the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MlflowSpec {
    /// URL of the server (MLflow's tracking URI), `http://` or `https://`.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of the experiment, which is created if it does not exist; by default the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 250))]
    pub experiment: Option<String>,
    /// Name of the run; by default the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 250))]
    pub run_name: Option<String>,
}

/// Run on a server of Trackio: one's own (`trackio show --host 0.0.0.0`), or a Space of the hub. Credentials
/// are read from the environment, which `workers.env` sets: `TRACKIO_WRITE_TOKEN`, or `HF_TOKEN` for a Space.
/// While the server does not answer, metrics of steps are held back; `rlctl track` sends what is missing at
/// the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrackioSpec {
    /// URL of the server, `http://` or `https://`; of a Space `https://OWNER-NAME.hf.space`.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of the project, which is created if it does not exist; by default the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub project: Option<String>,
    /// Name of the run; by default the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub run_name: Option<String>,
}

/// Offline run of Weights & Biases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WandbSpec {
    /// Name of the project; by default the job's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub project: Option<String>,
    /// Team or user that owns the run; by default that of the account that uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub entity: Option<String>,
    /// Name of the run; by default the job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub run_name: Option<String>,
}
