//! The status of a job, which the operator writes.
//!
//! Conditions say the current state. Counters that decisions depend on (attempts, failures) are kept here,
//! never in memory. The history of metrics does not belong here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::FailureCause;

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

/// A summary of the conditions of a job, for tools that compare one value. `Succeeded` and `Failed` are
/// final; the others may follow each other in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Workers are awaited: for the first time, after a failure or after a pause.
    Pending,
    /// All workers are ready (`PodsReady`).
    Running,
    /// Held back on request or by a queue (`Suspended`).
    Suspended,
    /// The job has ended well (`Complete`).
    Succeeded,
    /// The job has ended badly (`Failed`).
    Failed,
}

impl Phase {
    /// The phase of these conditions.
    pub fn of(conditions: &[Condition]) -> Self {
        let holds = |type_| {
            let is_it = |one: &&Condition| one.type_ == type_;
            conditions.iter().find(is_it).is_some_and(|one| one.status == ConditionStatus::True)
        };
        let phases = [
            (ConditionType::Complete, Self::Succeeded),
            (ConditionType::Failed, Self::Failed),
            (ConditionType::Suspended, Self::Suspended),
            (ConditionType::PodsReady, Self::Running),
        ];
        phases.into_iter().find(|(type_, _)| holds(*type_)).map_or(Self::Pending, |(_, phase)| phase)
    }
}

/// The condition types, all present from the first status on, and in this order: the first that is true
/// describes the job best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The job has ended well.
    Complete,
    /// The job has ended badly.
    Failed,
    /// The operator cannot continue without a change by the user.
    Stalled,
    /// The job is held back on request.
    Suspended,
    /// The operator is working towards the specification.
    Reconciling,
    /// The trainer makes steps.
    Progressing,
    /// All workers are ready.
    PodsReady,
    /// The newest checkpoint is complete.
    CheckpointHealthy,
    /// A queue has admitted the job.
    Admitted,
    /// The summary: unknown while the job is active, then true or false for good.
    Succeeded,
}

impl ConditionType {
    /// Every type, in the order of a status.
    pub const ALL: [Self; 10] = [
        Self::Complete,
        Self::Failed,
        Self::Stalled,
        Self::Suspended,
        Self::Reconciling,
        Self::Progressing,
        Self::PodsReady,
        Self::CheckpointHealthy,
        Self::Admitted,
        Self::Succeeded,
    ];
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
    /// The type of the condition.
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
    /// A message for users.
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// How many workers of one group there are, and how far they are. A worker is counted once, besides in
/// `ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroupStatus {
    /// The group.
    pub name: String,
    /// Workers that are needed.
    pub desired: u32,
    /// Workers that wait for a node, an image or a volume.
    pub pending: u32,
    /// Workers that run.
    pub running: u32,
    /// Running workers that are ready, and those that have ended well.
    pub ready: u32,
    /// Workers that have ended well.
    pub succeeded: u32,
    /// Workers that have failed.
    pub failed: u32,
    /// Workers that are being stopped, those of earlier attempts included.
    pub terminating: u32,
    /// Where the workers of the attempt are, by each label of `spec.workers.topology`, once all of them ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub topology: Vec<TopologyStatus>,
}

/// The domains in which the workers of a group are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyStatus {
    /// The label of nodes whose values are domains.
    pub label: String,
    /// The domains in the order of the workers; 64 at most.
    #[schemars(length(max = 64))]
    pub domains: Vec<DomainStatus>,
}

/// A domain, and the workers in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainStatus {
    /// The value of the label; empty where the node has none.
    pub name: String,
    /// Neighbours by index, such as `0-3`.
    pub workers: String,
}

/// A spare that took the ranks of a lost worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotedSpareStatus {
    /// The index of the worker that it replaces.
    pub worker: u32,
    /// Its pod.
    #[schemars(length(max = 253))]
    pub pod: String,
}

/// A worker that is stopped because of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// The cause of the attempt's end.
    pub cause: FailureCause,
    /// The worker.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// The taint or condition of the node.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The failure that ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// The attempt.
    pub attempt: u32,
    /// The cause.
    pub cause: FailureCause,
    /// The worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The rule of `spec.runPolicy.failurePolicy` that decided about the failure, with its action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub rule: Option<String>,
    /// The last error of the trainer or of Kubernetes.
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Advice for the user.
    #[schemars(length(max = 1024))]
    pub advice: String,
    /// When the operator saw it (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
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
