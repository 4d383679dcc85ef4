//! Placement of workers on nodes: tolerated taints, and domains near each other. It has effect only on a
//! cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Toleration of a node's taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TolerationSpec {
    /// Key of the taint; by default every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// Comparison of the value; by default `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; by default every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// Comparison of a toleration's value with that of the taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The taint has this value.
    #[default]
    Equal,
    /// The taint has any value.
    Exists,
}

/// Effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// Pods are not scheduled on the node.
    NoSchedule,
    /// Pods are scheduled on the node only where there is no other.
    PreferNoSchedule,
    /// Pods are not scheduled on the node, and running ones are evicted.
    NoExecute,
}

/// Placement of the workers near each other: one of `required` and `preferred`, `slice`, or both. A domain is
/// all nodes with the same value of a label, such as `topology.kubernetes.io/zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TopologySpec {
    /// Node label whose value must be the same for the nodes of all workers; else none of them starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub required: Option<String>,
    /// Node label whose value should be the same for the nodes of all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub preferred: Option<String>,
    /// Slices of workers with adjacent indices, each in a smaller domain, such as a rack or an NVLink domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<TopologySliceSpec>,
}

/// Slices of equal size of the workers in the order of their indices, each in one domain. Axes of the mesh
/// that fit a slice exchange within its domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySliceSpec {
    /// Node label whose value must be the same for the nodes of all workers of a slice; else none of them
    /// starts.
    #[schemars(length(min = 1, max = 317))]
    pub required: String,
    /// Number of workers per slice, a divisor of `count`.
    #[schemars(range(min = 1, max = 1024))]
    pub size: u32,
}
