//! The workers of a job: how many there are, where they are, and why one was replaced, stopped or failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::FailureCause;

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
