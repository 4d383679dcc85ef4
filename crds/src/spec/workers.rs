//! `spec.workers`: what the training runs on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the training runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// The device of the tensors.
    pub device: Device,
    /// CPU threads of one worker; by default as many as the machine has cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
}

/// The device of the tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Device {
    /// A GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; without one the job fails.
    Cuda,
}
