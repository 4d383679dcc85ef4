//! The workers of a job: how many there are, where they are, and why one was replaced, stopped or failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureCause;

/// Number of workers of one group, by state. A worker is counted once, besides in `ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroupStatus {
    /// Name of the group.
    pub name: String,
    /// Number of workers that are needed.
    pub desired: u32,
    /// Number of workers that wait for a node, an image or a volume.
    pub pending: u32,
    /// Number of workers that run.
    pub running: u32,
    /// Number of running workers that are ready, and of those that have succeeded.
    pub ready: u32,
    /// Number of workers that have succeeded.
    pub succeeded: u32,
    /// Number of workers that have failed.
    pub failed: u32,
    /// Number of workers that are being stopped, those of earlier attempts included.
    pub terminating: u32,
    /// Domains of the attempt's workers, by each label of `spec.workers.topology`, once all of them ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub topology: Vec<TopologyStatus>,
}

/// Domains of the workers of a group, by one node label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyStatus {
    /// Node label whose values are the domains.
    pub label: String,
    /// Domains in the order of the workers; at most 64.
    #[schemars(length(max = 64))]
    pub domains: Vec<DomainStatus>,
}

/// Domain with its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainStatus {
    /// Value of the label; empty where the node has none.
    pub name: String,
    /// Range of adjacent worker indices, such as `0-3`.
    pub workers: String,
}

/// Spare that took over the ranks of a lost worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotedSpareStatus {
    /// Index of the worker that it replaces.
    pub worker: u32,
    /// Pod of the spare.
    #[schemars(length(max = 253))]
    pub pod: String,
}

/// Worker that is stopped because of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// Cause of the attempt's end.
    pub cause: FailureCause,
    /// Pod of the worker.
    pub pod: String,
    /// Node of the worker.
    pub node: String,
    /// Taint or condition of the node.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Failure that ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// Number of the attempt.
    pub attempt: u32,
    /// Cause of the failure.
    pub cause: FailureCause,
    /// Pod of the worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Node of the worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Exit code of the worker that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Rule of `spec.runPolicy.failurePolicy` that decided about the failure, with its action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub rule: Option<String>,
    /// Last error of the trainer or of Kubernetes.
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Advice for the user.
    #[schemars(length(max = 1024))]
    pub advice: String,
    /// Time at which the operator noticed the failure (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}
