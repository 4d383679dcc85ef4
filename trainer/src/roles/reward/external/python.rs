//! Reward functions in Python, run in the sandbox by an interpreter that the user provides.

use std::path::PathBuf;
use std::sync::Arc;

use rlt_api::spec::{PythonRewardSpec, WasmSpec};
use rlt_core::reward::Verdict;
use rlt_sandbox::{Interpreter, SandboxError, State, WasmError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ExternalSample;
use super::batches::sample_json;
use super::event_loop::EventLoop;
use super::limits::{bounds_of, verdict_of};
use super::module::{self, ModuleError};
use super::permits::ConcurrencyLimit;
use super::status::Status;

/// Maximum size of a file with reward functions, in bytes.
const MAX_SOURCE_BYTES: u64 = 16 << 20;

/// Number of characters of a program's output that a message quotes.
const QUOTED: usize = 500;

/// A reward function in an interpreter, whose concurrent calls are limited to the number of processors.
pub(super) struct PythonFunction {
    interpreter: Arc<Interpreter>,
    permits: ConcurrencyLimit,
}

/// Result of a reward function for a sample, as JSON.
#[derive(Deserialize)]
struct PythonResult {
    #[serde(default)]
    status: Status,
    value: Option<f64>,
    message: Option<String>,
}

impl PythonFunction {
    pub(super) fn new(
        python: &PythonRewardSpec,
        wasm: &WasmSpec,
        event_loop: &EventLoop,
    ) -> Result<Self, ModuleError> {
        let failed = |source| ModuleError::Source { path: PathBuf::from(&python.path), source };
        let source = rlt_files::read_to_string(python.path.as_ref(), MAX_SOURCE_BYTES).map_err(failed)?;
        let interpreter = load(&module::load(wasm, event_loop)?, wasm, python, &source)?;
        Ok(Self { interpreter: Arc::new(interpreter), permits: ConcurrencyLimit::of_processors() })
    }

    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        let (interpreter, sample) = (Arc::clone(&self.interpreter), sample_json(sample));
        self.permits.run(move || judge(&interpreter, sample)).await
    }
}

/// Loads the file of a reward function into an interpreter.
pub(super) fn load(
    module: &[u8],
    wasm: &WasmSpec,
    python: &PythonRewardSpec,
    source: &str,
) -> Result<Interpreter, WasmError> {
    let PythonRewardSpec { path, function } = python;
    // Python skips the mark in a file, but not in a text.
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let preparation = json!({"imports": [], "path": path, "source": source, "function": function});
    Interpreter::new(module, bounds_of(wasm), &preparation)
}

/// Calls the function for a sample, which has the fields of the protocol of `Server`.
pub(super) fn judge(interpreter: &Interpreter, mut sample: Value) -> Verdict {
    sample["run"] = json!("reward");
    // verl's name of the completion.
    sample["solution_str"] = sample["completion"].clone();
    match run_sample(interpreter, &sample) {
        Ok(verdict) => verdict,
        Err(error) => verdict_of(interpreter.bounds(), error),
    }
}

fn run_sample(interpreter: &Interpreter, sample: &Value) -> Result<Verdict, SandboxError> {
    let (mut process, state) = interpreter.start(sample, Some(""))?;
    let output = process.take_output();
    let result: Option<PythonResult> = serde_json::from_slice(&output).ok();
    Ok(match (state, result) {
        (State::Exited(0), Some(result)) => result.verdict(),
        (State::Exited(code), _) => {
            let errors = process.errors();
            let skipped = errors.chars().count().saturating_sub(QUOTED);
            let end: String = errors.chars().skip(skipped).collect();
            Verdict::infra(format!("the function ended the interpreter with exit code {code}: {end}"))
        }
        (State::Waits | State::AtClock, _) => Verdict::infra("the function waits for input"),
    })
}

impl PythonResult {
    fn verdict(self) -> Verdict {
        let Self { status, value, message } = self;
        let no_value = message.clone().unwrap_or_else(|| "the function returned no value".to_owned());
        status.verdict(value, message, "the function").unwrap_or_else(|| Verdict::infra(no_value))
    }
}
