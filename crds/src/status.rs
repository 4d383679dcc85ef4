//! The status of a job, which the operator writes.
//!
//! Conditions say the current state. Counters that decisions depend on (attempts, failures) are kept here,
//! never in memory. The history of metrics does not belong here.

mod accepted;
mod conditions;
mod progress;
mod workers;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureCause;
pub use accepted::*;
pub use conditions::*;
pub use progress::*;
pub use workers::*;

/// Status of a job, which the operator writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
// The operator is the only writer, so managed fields are not kept: they were a fifth of the whole object.
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct RLTrainingJobStatus {
    /// Generation of the specification that this status reflects; -1 until an operator has seen the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of times this status was written. If it differs from before, nothing else can have changed, so
    /// the rules about changes of the specification have nothing to compare.
    pub writes: u64,
    /// Summary of the conditions in one word, for tools that compare a single value such as Argo Workflows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Conditions of the job, one entry per type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Number of the current attempt, from 1: how often the workers were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Time at which the attempt was to start, a delay included (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub attempt_start_time: Option<String>,
    /// Id of the attempt's OpenTelemetry trace, where the attempt is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub trace_id: Option<String>,
    /// Time at which all workers of the attempt ran for the first time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub attempt_running_time: Option<String>,
    /// Number of consecutive attempts that ended within a minute without a new checkpoint; the more there
    /// are, the longer the next one waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_attempts: Option<u32>,
    /// Number of ended attempts and restarts in place over the life of the job, by cause.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub failures_by_cause: BTreeMap<FailureCause, u32>,
    /// Number of failures since the last new checkpoint, by cause: these count against
    /// `spec.runPolicy.retries`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub retries_used: BTreeMap<FailureCause, u32>,
    /// Number of restarts of the current attempt's processes within their pod, by cause. They are counted in
    /// `failuresByCause` and `retriesUsed` too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub restarts_in_place: BTreeMap<FailureCause, u32>,
    /// Step of the newest checkpoint when `retriesUsed` was reset; a failure after a newer one resets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries_since_step: Option<u64>,
    /// Number of restarts by rules of `spec.runPolicy.failurePolicy` since the last new checkpoint: these
    /// count against its `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_restarts_used: Option<u32>,
    /// Number of failures that may be a node's fault, by its name: the more a node has, the more strongly new
    /// workers prefer others. The 16 worst nodes are kept.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}, "maxProperties" = 16))]
    pub failures_by_node: BTreeMap<String, u32>,
    /// Nodes that the job's Workload excludes where Kueue chooses the nodes: those at fault for a failure. A
    /// suspension, and a wait of 15 minutes for another place, clear the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub excluded_nodes: Vec<String>,
    /// Whether the attempt is started in the pods of the one before, with spares in place of lost ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attempt_in_place: bool,
    /// Spares that took over the ranks of lost workers and have them in this attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["worker"])
    )]
    pub promoted_spares: Vec<PromotedSpareStatus>,
    /// Evacuation of a node, because of which the attempt's workers are being stopped; they save a checkpoint
    /// and start again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<EvacuationStatus>,
    /// Failure that ended the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureStatus>,
    /// Number of ready workers and of those that are needed, such as `7/8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Number of pending and running workers without spares, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Label selector of the workers, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Name of the queue that the job requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Workers of each group, by state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub worker_groups: Vec<WorkerGroupStatus>,
    /// Progress of the training, as the trainer reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Complete checkpoints, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["step"])
    )]
    pub checkpoints: Vec<CheckpointStatus>,
    /// Specification that the job runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedStatus>,
    /// Numbers that follow from the specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedNumbers>,
    /// Commits at which models and data sets of the hub were read, as the trainer reported them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 66),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["field"])
    )]
    pub commits: Vec<CommitStatus>,
    /// Time at which the workers of the first attempt were started (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Time since which the job is active; none while it is suspended (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub active_since: Option<String>,
    /// Seconds for which the job was active, without those since `activeSince`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_seconds: Option<u64>,
    /// Time at which the job ended (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
}

impl RLTrainingJobStatus {
    /// Whether a condition holds.
    pub fn is(&self, type_: ConditionType) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| condition.type_ == type_ && condition.status == ConditionStatus::True)
    }
}

/// Numbers that follow from the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedNumbers {
    /// Number of ranks.
    pub world_size: u32,
    /// Number of GPUs that each worker requests from the cluster; 0 unless `spec.workers.device` is `Cuda`.
    #[serde(default)]
    pub gpus_per_worker: u32,
    /// Number of prompts per step.
    pub prompts_per_step: u64,
    /// Number of samples per step.
    pub samples_per_step: u64,
    /// Number of optimizer updates per step.
    pub updates_per_step: u64,
    /// Estimated peak memory of one worker's pod in bytes, without GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}
