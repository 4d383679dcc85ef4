//! `spec.runPolicy.failurePolicy`: rules of a job that decide about its failures before the operator's
//! retries do. The terms are those of `podFailurePolicy` of a Kubernetes Job and of `failurePolicy` of a
//! JobSet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::FailureCause;

/// Actions after the end of an attempt, by rules. If no rule matches, `retries` decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicySpec {
    /// How often rules with the action `Restart` start the workers again without a new checkpoint in between,
    /// all of these rules together.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// The rules in order; the first one that matches decides.
    #[schemars(length(min = 1, max = 20))]
    pub rules: Vec<FailureRuleSpec>,
}

fn default_max_restarts() -> u32 {
    3
}

/// One rule. It matches where all of its `on..` fields match, of which it has at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRuleSpec {
    /// Its name in conditions and in `rlctl why`; by default its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The action after the failure.
    pub action: FailureAction,
    /// Whether the next workers prefer other nodes than the one of the worker that failed.
    #[serde(default)]
    pub avoid_node: bool,
    /// Exit codes of the worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<ExitCodesSpec>,
    /// Kubernetes' reasons of that worker's pod, one of which matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_reasons: Vec<FailureReason>,
    /// The operator's own causes, one of which matches; `DeadlineExceeded` ends a job before any rule
    /// applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub on_causes: Vec<FailureCause>,
}

/// The action after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureAction {
    /// The workers start again; it counts against `maxRestarts`.
    Restart,
    /// The workers start again, and it counts for nothing.
    Ignore,
    /// The job fails.
    FailJob,
}

/// Exit codes, as a Kubernetes Job names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExitCodesSpec {
    /// How the exit code is compared with `values`.
    pub operator: ExitCodesOperator,
    /// Exit codes; above 128 they are 128 and a signal.
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub values: Vec<i32>,
}

/// How an exit code is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodesOperator {
    /// It is one of the values.
    In,
    /// It is none of the values.
    NotIn,
}

/// Reasons that Kubernetes gives for the end of a pod, or for one that does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureReason {
    /// The container ended with an exit code that is not 0.
    Error,
    /// The container needed more memory than it may have.
    OOMKilled,
    /// How the container ended is not known.
    ContainerStatusUnknown,
    /// The container could not be started.
    StartError,
    /// The container could not be started.
    ContainerCannotRun,
    /// The image could not be pulled.
    ErrImagePull,
    /// The image could not be pulled several times.
    ImagePullBackOff,
    /// The image is not on the node, and may not be pulled.
    ErrImageNeverPull,
    /// The name of the image cannot be read.
    InvalidImageName,
    /// A ConfigMap or Secret of the container is missing.
    CreateContainerConfigError,
    /// The container could not be made.
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
    /// The node of the pod does not answer.
    NodeLost,
    /// The scheduler gave the place to a pod of a higher priority.
    PreemptionByScheduler,
    /// A taint of the node evicted the pod.
    DeletionByTaintManager,
    /// The pod was evicted by the eviction API, as `kubectl drain` does.
    EvictionByEvictionAPI,
    /// The node of the pod does not exist any more.
    DeletionByPodGC,
    /// The kubelet ended the pod: its node shuts down or is short of something.
    TerminationByKubelet,
}

impl FailureReason {
    /// Returns the reason as a pod's status writes it.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
