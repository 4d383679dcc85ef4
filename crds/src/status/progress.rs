//! Reports of the trainer about a job: its progress, its checkpoints, and the commits that it reads from the
//! hub.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Progress of the training, as the trainer reported it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Number of finished steps.
    pub step: u64,
    /// Number of steps of the training.
    pub num_steps: u64,
    /// Mean reward of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Phase of the trainer, such as `Rollout` or `Update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub phase: Option<String>,
    /// Mean held-out reward of the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// Tokens of the last step, prompts and completions, divided by its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// KL divergence to the reference policy in nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Seconds until the end of the training, estimated from the pace so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
    /// Fraction of the trainer's time that went into finished steps, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// Whether all steps were finished before this attempt began, because the workers' storage holds a
    /// complete run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_found: bool,
    /// Reasons of the warning, each once: `RunsOnCpu`, `CheckpointNotSaved`, or symptoms such as
    /// `EntropyCollapse`. Clients must accept other names too, which trainers of later releases give.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 12))]
    pub warning_reasons: Vec<String>,
    /// Warning of the trainer, such as that it computes on the CPU although the machine has a GPU, which
    /// cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub warning: Option<String>,
    /// Time at which the last step was finished (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub step_time: Option<String>,
    /// Time of the trainer's last report (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub heartbeat_time: Option<String>,
}

/// Commit at which a model or a data set of the hub was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitStatus {
    /// Field that names the repository, such as `spec.model.hub`.
    #[schemars(length(max = 256))]
    pub field: String,
    /// Owner and name of the repository.
    #[schemars(length(max = 256))]
    pub repo: String,
    /// Commit to which the revision resolved, 40 hexadecimal digits.
    #[schemars(length(max = 40))]
    pub commit: String,
}

/// Complete checkpoint of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Number of finished steps when it was taken.
    pub step: u64,
    /// Folder of the checkpoint.
    pub path: String,
    /// Digest of the checkpoint's manifest.
    pub digest: String,
    /// Number of ranks that wrote the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Whether a restart resumes from this checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub latest: bool,
    /// Time at which the checkpoint was committed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}
