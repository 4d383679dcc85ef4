//! The status of a job, as the operator writes it and people read it.
//!
//! Conditions say what is; counters that decide anything (attempts, failures) are kept here, never in memory.
//! Metrics history does not belong here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is known about a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RLTrainingJobStatus {
    /// The generation of the specification that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is true of the job, one entry a type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// How often the workers were started, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Failed attempts by their cause.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures_by_cause: BTreeMap<String, u32>,
    /// The workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// How far the training is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Complete checkpoints, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["step"])
    )]
    pub checkpoints: Vec<CheckpointStatus>,
    /// The numbers that follow from the specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedNumbers>,
    /// When the workers of the first attempt were started (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// When the job ended (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
}

/// The condition types, all present from the first status on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The summary: unknown while the job is active, then true or false for good.
    Succeeded,
    /// The job has ended well.
    Complete,
    /// The job has ended badly.
    Failed,
    /// The job is held back on request.
    Suspended,
    /// A queue has let the job in.
    Admitted,
    /// All pods are ready.
    PodsReady,
    /// The trainer makes steps.
    Progressing,
    /// The last checkpoint was written and verified.
    CheckpointHealthy,
    /// The operator is working towards the specification.
    Reconciling,
    /// The operator cannot go on by itself.
    Stalled,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known yet.
    Unknown,
}

/// One condition, in the form of Kubernetes' own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it speaks of.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The generation of the specification that it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, in one word for programs.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// Why, for people.
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// How many workers there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// Workers that are needed.
    pub desired: u32,
    /// Workers that are ready.
    pub ready: u32,
}

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
    /// Mean reward of the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// Tokens of the last step by its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// When the trainer last reported (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub heartbeat_time: Option<String>,
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
    /// When it was committed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}

/// The numbers that follow from the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedNumbers {
    /// Ranks.
    pub world_size: u32,
    /// Prompts of a step.
    pub prompts_per_step: u64,
    /// Samples of a step.
    pub samples_per_step: u64,
    /// Optimizer updates of a step.
    pub updates_per_step: u64,
    /// Estimated peak memory of one worker on its device, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// The commit that `model.hub.revision` resolved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_commit: Option<String>,
}
