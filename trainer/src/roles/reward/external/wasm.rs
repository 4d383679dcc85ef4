//! Reward functions that are a WebAssembly module without imports, run in the sandbox.

use std::sync::Arc;

use rlt_api::spec::WasmSpec;
use rlt_core::reward::Verdict;
use rlt_sandbox::Sandbox;

use super::ExternalSample;
use super::batches::sample_json;
use super::event_loop::EventLoop;
use super::limits::{bounds_of, verdict_of};
use super::module::{self, ModuleError};
use super::permits::ConcurrencyLimit;

/// A sandbox whose concurrent calls are limited to the number of processors.
pub(super) struct WasmFunction {
    sandbox: Arc<Sandbox>,
    permits: ConcurrencyLimit,
}

impl WasmFunction {
    pub(super) fn new(spec: &WasmSpec, event_loop: &EventLoop) -> Result<Self, ModuleError> {
        let sandbox = Sandbox::new(&module::load(spec, event_loop)?, bounds_of(spec))?;
        Ok(Self { sandbox: Arc::new(sandbox), permits: ConcurrencyLimit::of_processors() })
    }

    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        let (sandbox, input) = (Arc::clone(&self.sandbox), sample_json(sample).to_string());
        self.permits.run(move || judge(&sandbox, input.as_bytes())).await
    }
}

/// Judges a sample, given as JSON, in a fresh instance.
pub(super) fn judge(sandbox: &Sandbox, input: &[u8]) -> Verdict {
    match sandbox.judge(input) {
        Ok(value) if value.is_nan() => Verdict::infra("the module says that it cannot judge (NaN)"),
        Ok(value) if value.is_infinite() => Verdict::infra(format!("the module returned {value}")),
        Ok(value) => Verdict::ok(value),
        Err(error) => verdict_of(sandbox.bounds(), error),
    }
}
