//! Limits of the sandbox as a manifest states them, and the verdict on a sample whose call breaks one.

use std::time::Duration;

use rlt_api::spec::WasmSpec;
use rlt_core::reward::Verdict;
use rlt_sandbox::{Bounds, SandboxError};

/// Returns the limits of a function's calls.
pub(super) fn bounds_of(spec: &WasmSpec) -> Bounds {
    Bounds {
        fuel: spec.fuel,
        max_memory_bytes: (spec.memory_mib as usize) << 20,
        timeout: Duration::from_secs_f64(spec.timeout_seconds),
    }
}

/// Returns the verdict on a sample whose call ended without a result.
pub(super) fn verdict_of(bounds: &Bounds, error: SandboxError) -> Verdict {
    match error {
        SandboxError::Fuel | SandboxError::Time => Verdict::timeout(bounds.reason(error)),
        SandboxError::Wrong(message) => Verdict::infra(message),
    }
}
