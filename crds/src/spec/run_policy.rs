//! `spec.runPolicy`: when the job starts, stops, restarts and is deleted. In a local run only the deadline of
//! the whole job acts, and with several ranks the grace period and most retries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailurePolicySpec;

/// Time limits, suspension, restarts and deletion of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunPolicySpec {
    /// Whether the job is suspended: its workers save a checkpoint and stop, and start again when this is
    /// false.
    pub suspend: bool,
    /// Maximum duration of the job in seconds, without the time of suspensions; then it is stopped with a
    /// checkpoint and fails. By default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<u64>,
    /// Maximum time in seconds until all workers run; then the job fails. By default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub startup_deadline_seconds: Option<u64>,
    /// Maximum time in seconds that running workers may go without finishing a step; then they are restarted.
    /// By default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub stall_deadline_seconds: Option<u64>,
    /// Time in seconds after its end at which the job is deleted; by default never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315360000))]
    pub ttl_seconds_after_finished: Option<u64>,
    /// Objects that are deleted after `ttlSecondsAfterFinished`.
    pub ttl_policy: TtlPolicy,
    /// Pods that are deleted when the job ends.
    pub clean_pod_policy: CleanPodPolicy,
    /// Time in seconds that a worker has for a checkpoint when it is stopped; then it is killed.
    #[schemars(range(min = 1, max = 86400))]
    pub termination_grace_period_seconds: u32,
    /// Maximum number of restarts from the last complete checkpoint, by cause; a new checkpoint resets the
    /// counts. Evicted workers and lost nodes are not counted. A local run of several ranks obeys `failure`,
    /// `crash`, `io` and `checkpoint`; a local run of one rank is one process, which is not restarted.
    pub retries: RetriesSpec,
    /// Rules for failures, which take precedence over `retries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicySpec>,
}

impl Default for RunPolicySpec {
    fn default() -> Self {
        Self {
            suspend: false,
            active_deadline_seconds: None,
            startup_deadline_seconds: None,
            stall_deadline_seconds: None,
            ttl_seconds_after_finished: None,
            ttl_policy: TtlPolicy::KeepTracked,
            clean_pod_policy: CleanPodPolicy::Running,
            termination_grace_period_seconds: 60,
            retries: RetriesSpec::default(),
            failure_policy: None,
        }
    }
}

/// Objects that are deleted some time after the job's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TtlPolicy {
    /// The job; only its pods if Argo CD or Flux applied it, and would apply it again.
    #[default]
    KeepTracked,
    /// The job, also if Argo CD or Flux applied it.
    Delete,
}

/// Pods that are deleted when the job ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CleanPodPolicy {
    /// Pods that still run; logs of the others can still be read.
    #[default]
    Running,
    /// All pods of the job.
    All,
    /// No pods, not even those that still run.
    None,
}

/// Maximum number of restarts, by cause. A new checkpoint resets the counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetriesSpec {
    /// Restarts after an error without a class of its own.
    #[schemars(range(min = 0, max = 1000))]
    pub failure: u32,
    /// Restarts after a worker ran out of memory.
    #[schemars(range(min = 0, max = 1000))]
    pub out_of_memory: u32,
    /// Restarts after a signal of unknown origin, a failed GPU, or the loss of another worker.
    #[schemars(range(min = 0, max = 1000))]
    pub crash: u32,
    /// Restarts after reading or writing failed.
    #[schemars(range(min = 0, max = 1000))]
    pub io: u32,
    /// Restarts after no checkpoint could be read.
    #[schemars(range(min = 0, max = 1000))]
    pub checkpoint: u32,
    /// Restarts after no step was finished for `stallDeadlineSeconds`.
    #[schemars(range(min = 0, max = 1000))]
    pub stall: u32,
}

impl Default for RetriesSpec {
    fn default() -> Self {
        Self { failure: 0, out_of_memory: 1, crash: 3, io: 5, checkpoint: 1, stall: 1 }
    }
}
