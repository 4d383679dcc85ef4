//! What the trainer reports of a job: how far it is, its checkpoints, and the commits that it reads from the
//! hub.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far the training is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps to do.
    pub num_steps: u64,
    /// Mean reward of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// The trainer's current phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub phase: Option<String>,
    /// Mean reward of the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// Tokens of the last step by its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// KL to the reference in nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Seconds that the rest takes at the pace so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
    /// Part of the time of the workers that went into steps, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// The trainer's warning, such as computing on the CPU beside a GPU that cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub warning: Option<String>,
    /// When the last step was finished (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub step_time: Option<String>,
    /// When the trainer last reported (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub heartbeat_time: Option<String>,
}

/// The commit at which a model or a data set from the hub was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitStatus {
    /// The field that names it, such as `spec.model.hub`.
    #[schemars(length(max = 256))]
    pub field: String,
    /// Owner and name on the hub.
    #[schemars(length(max = 256))]
    pub repo: String,
    /// The commit that its revision resolved to, 40 hexadecimal digits.
    #[schemars(length(max = 40))]
    pub commit: String,
}

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Steps done when it was taken.
    pub step: u64,
    /// Its folder.
    pub path: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Ranks that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Whether a restart resumes from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub latest: bool,
    /// When it was committed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}
