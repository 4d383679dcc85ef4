//! On which nodes workers are: taints that these may have, and how near to each other. It acts only on a
//! cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A taint that a node may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TolerationSpec {
    /// The taint's key; by default every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// How the value is compared; by default `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The taint's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The taint's effect; by default every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How a toleration's value is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The taint has this value.
    #[default]
    Equal,
    /// The taint has any value.
    Exists,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// Keeps pods away.
    NoSchedule,
    /// Keeps pods away where there is another node.
    PreferNoSchedule,
    /// Keeps pods away and evicts them.
    NoExecute,
}

/// How near to each other the workers are placed: one of `required` and `preferred`, `slice`, or both. A
/// domain is all nodes with the same value of a label, such as `topology.kubernetes.io/zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TopologySpec {
    /// The label whose value must be the same for the nodes of all workers; else none of them starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub required: Option<String>,
    /// The label whose value should be the same for the nodes of all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub preferred: Option<String>,
    /// Neighbours by index that share a smaller domain, such as a rack or an NVLink domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<TopologySliceSpec>,
}

/// Workers in the order of their indices, cut into slices of equal size, each in one domain.
/// Axes of the mesh that fit a slice exchange within its domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySliceSpec {
    /// The label whose value must be the same for the nodes of all workers of a slice; else none of them
    /// starts.
    #[schemars(length(min = 1, max = 317))]
    pub required: String,
    /// Workers of a slice, a divisor of `count`.
    #[schemars(range(min = 1, max = 1024))]
    pub size: u32,
}
