//! `spec.runPolicy`: time limits of the whole job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time limits of the whole job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunPolicySpec {
    /// Seconds after which the job is stopped with a checkpoint; by default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<u64>,
}
