//! The status of a job, which the operator writes.
//!
//! Conditions say the current state. Counters that decisions depend on (attempts, failures) are kept here,
//! never in memory. The history of metrics does not belong here.

mod conditions;
mod progress;
mod workers;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::FailureCause;
pub use conditions::*;
pub use progress::*;
pub use workers::*;

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
// The operator is the only writer, so managed fields are not kept: they were a fifth of the whole object.
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct RLTrainingJobStatus {
    /// The generation of the specification that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How often this status was written. Where it differs from before nothing else can have changed, so that
    /// the rules about changes of the specification have nothing to compare.
    pub writes: u64,
    /// The conditions in one word, for tools that compare a single value such as Argo Workflows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The conditions of the job, one entry a type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// How often the workers were started, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the attempt was to start (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub attempt_start_time: Option<String>,
    /// The id of the attempt's OpenTelemetry trace, where the attempt is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub trace_id: Option<String>,
    /// When all workers of the attempt ran for the first time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub attempt_running_time: Option<String>,
    /// Attempts in a row that ended within a minute; the next one waits the longer the more there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_attempts: Option<u32>,
    /// Ended attempts and restarts in place, by cause.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub failures_by_cause: BTreeMap<FailureCause, u32>,
    /// Failures since the last new checkpoint: these count against `spec.runPolicy.retries`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub retries_used: BTreeMap<FailureCause, u32>,
    /// Restarts of the present attempt's processes within their pod, by cause. They are counted in
    /// `failuresByCause` and `retriesUsed` too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}))]
    pub restarts_in_place: BTreeMap<FailureCause, u32>,
    /// The step of the newest checkpoint when `retriesUsed` was reset; a failure after a newer one resets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries_since_step: Option<u64>,
    /// Restarts by rules of `spec.runPolicy.failurePolicy` since the last new checkpoint: these count against
    /// its `maxRestarts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_restarts_used: Option<u32>,
    /// Failures that may be a node's fault, by its name: new workers prefer other nodes, the more it has the
    /// stronger. The 16 worst are kept.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = {"type": "integer", "minimum": 0}, "maxProperties" = 16))]
    pub failures_by_node: BTreeMap<String, u32>,
    /// Whether the attempt is started in the pods of the one before, with spares in place of lost ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attempt_in_place: bool,
    /// The spares that took the ranks of lost workers and have them in this attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["worker"])
    )]
    pub promoted_spares: Vec<PromotedSpareStatus>,
    /// Why the attempt's workers are being stopped because of a node; they save a checkpoint and start again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<EvacuationStatus>,
    /// The failure that ended the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureStatus>,
    /// Ready workers of those that are needed, such as `7/8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Workers that are there, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The label selector of the workers, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The queue that has a say in the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The workers, group by group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub worker_groups: Vec<WorkerGroupStatus>,
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
    /// The commits at which models and data sets from the hub were read, as the trainer reported them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 66),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["field"])
    )]
    pub commits: Vec<CommitStatus>,
    /// When the workers of the first attempt were started (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Since when the job is active, unless it is suspended (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub active_since: Option<String>,
    /// Seconds that the job was active before it was last suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_seconds: Option<u64>,
    /// When the job ended (RFC 3339).
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

/// The numbers that follow from the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedNumbers {
    /// Ranks.
    pub world_size: u32,
    /// GPUs that each worker asks the cluster for; none unless `spec.workers.device` is `Cuda`.
    #[serde(default)]
    pub gpus_per_worker: u32,
    /// Prompts of a step.
    pub prompts_per_step: u64,
    /// Samples of a step.
    pub samples_per_step: u64,
    /// Optimizer updates of a step.
    pub updates_per_step: u64,
    /// Estimated peak memory of one worker's pod in bytes, without GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}
