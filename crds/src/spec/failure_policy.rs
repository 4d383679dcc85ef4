//! `spec.runPolicy.failurePolicy`: rules of a job that decide about its failures before the operator's
//! retries do. The terms are those of `podFailurePolicy` of a Kubernetes Job and of `failurePolicy` of a
//! JobSet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureCause;

/// Rules that decide what follows the end of an attempt. If no rule matches, `retries` decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicySpec {
    /// Maximum number of restarts by rules with the action `Restart`, all of these rules together, without a
    /// new checkpoint in between.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// Rules in order; the first one that matches decides.
    #[schemars(length(min = 1, max = 20))]
    pub rules: Vec<FailureRuleSpec>,
}

fn default_max_restarts() -> u32 {
    3
}

/// Rule for failures. It matches where all of its `on..` fields match, of which it has at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRuleSpec {
    /// Name of the rule in conditions and in `rlctl why`; by default its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Action after the failure.
    pub action: FailureAction,
    /// Whether the next workers prefer other nodes than that of the worker that failed first.
    #[serde(default)]
    pub avoid_node: bool,
    /// Exit codes of the worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<ExitCodesSpec>,
    /// Kubernetes reasons of the pod of the worker that failed first, one of which matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_reasons: Vec<FailureReason>,
    /// Causes that the operator assigns to the failure, one of which matches; `DeadlineExceeded` ends a job
    /// before any rule applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_causes: Vec<FailureCause>,
}

/// Action after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureAction {
    /// The workers are restarted, which counts against `maxRestarts`.
    Restart,
    /// The workers are restarted, and nothing is counted.
    Ignore,
    /// The job fails at once.
    FailJob,
}

/// Condition on an exit code, in the form of a Kubernetes Job's `onExitCodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodesSpec {
    /// Comparison of the exit code with `values`.
    pub operator: ExitCodesOperator,
    /// Exit codes to compare with; above 128 they are 128 plus the number of a signal.
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub values: Vec<i32>,
}

/// Comparison of an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodesOperator {
    /// The exit code is one of the values.
    In,
    /// The exit code is none of the values.
    NotIn,
}

/// Reason that Kubernetes gives for the end of a pod, or for a pod that does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureReason {
    /// The container ended with an exit code that is not 0.
    Error,
    /// The container was killed because it ran out of memory.
    OOMKilled,
    /// The kubelet does not know how the container ended.
    ContainerStatusUnknown,
    /// The container could not be started.
    StartError,
    /// The container could not be started.
    ContainerCannotRun,
    /// The image could not be pulled.
    ErrImagePull,
    /// The image could not be pulled several times in a row.
    ImagePullBackOff,
    /// The image is not on the node, and the pull policy is `Never`.
    ErrImageNeverPull,
    /// The name of the image cannot be parsed.
    InvalidImageName,
    /// A ConfigMap or Secret of the container is missing.
    CreateContainerConfigError,
    /// The container could not be created.
    CreateContainerError,
    /// The container could not be started.
    RunContainerError,
    /// No node has room for the pod.
    Unschedulable,
    /// The kubelet evicted the pod: its node was short of disk or memory.
    Evicted,
    /// The kubelet stopped the pod because its node shuts down.
    Terminated,
    /// The node refused the pod.
    UnexpectedAdmissionError,
    /// The pod's node does not answer.
    NodeLost,
    /// The scheduler preempted the pod for one of higher priority.
    PreemptionByScheduler,
    /// A taint of the node evicted the pod.
    DeletionByTaintManager,
    /// The eviction API evicted the pod, as `kubectl drain` does.
    EvictionByEvictionAPI,
    /// The pod's node no longer exists.
    DeletionByPodGC,
    /// The kubelet terminated the pod: its node shuts down or is short of resources.
    TerminationByKubelet,
}

impl FailureReason {
    /// Returns the reason as a pod's status writes it.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
