//! Reward functions in a sandbox: the location of a WebAssembly module, its limits, and the Python function
//! that an interpreter runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// WebAssembly module: for `Wasm` one that judges, for `Python` and `Code` a Python interpreter that is built
/// for WASI and contains its standard library. Exactly one of `path` and `url` is its source. Fuel and memory
/// bound a call, for `Code` the run of one test, so that it ends alike everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WasmSpec {
    /// File of the module; `workers.pod.volumes` mounts a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// URL of the module, which every rank fetches before the first step; needs `sha256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub url: Option<String>,
    /// SHA-256 of the module in 64 hexadecimal digits; a module with another digest is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64))]
    pub sha256: Option<String>,
    /// Fuel of one call, roughly its number of instructions. A call that needs more has the status `timeout`;
    /// a test that needs more fails.
    #[serde(default = "WasmSpec::default_fuel")]
    #[schemars(range(min = 1000, max = 1000000000000i64))]
    pub fuel: u64,
    /// Memory limit of one call in MiB.
    #[serde(default = "WasmSpec::default_memory_mib")]
    #[schemars(range(min = 1, max = 4096))]
    pub memory_mib: u32,
    /// Timeout of one call in seconds, meant for slow machines: a call that exceeds it may succeed on a
    /// faster machine.
    #[serde(default = "WasmSpec::default_timeout_seconds")]
    #[schemars(range(min = 0.01, max = 3600.0))]
    pub timeout_seconds: f64,
}

impl WasmSpec {
    fn default_fuel() -> u64 {
        500_000_000
    }
    fn default_memory_mib() -> u32 {
        64
    }
    fn default_timeout_seconds() -> f64 {
        60.0
    }
}

/// Reward function in Python, for `Python`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PythonRewardSpec {
    /// File that defines the function; `workers.pod.volumes` mounts a ConfigMap.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
    /// Name of the function. It is called with those fields of a sample that are among its parameters
    /// (docs/rewards.md), and returns a number, or a dictionary with `value`, `status` and `message`.
    #[serde(default = "PythonRewardSpec::default_function")]
    #[schemars(length(min = 1, max = 256))]
    pub function: String,
}

impl PythonRewardSpec {
    fn default_function() -> String {
        "reward".into()
    }
}
