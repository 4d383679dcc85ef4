//! Unit tests of a completion's code, run in the sandbox by an interpreter that the user provides.
//!
//! The code under test cannot reach what decides whether it passes. A program's output is compared outside of
//! the sandbox with an expected output that the program does not get. An assertion runs in an interpreter
//! that never runs the code; the code runs in a second one, and both exchange calls and values as messages.

use std::sync::Arc;
use std::time::Duration;

use rlt_api::spec::{CodeRewardSpec, WasmSpec};
use rlt_core::reward::Verdict;
use rlt_core::reward::code::{Program, is_expected};
use rlt_sandbox::{Interpreter, Process, SandboxError, State, WasmError};
use serde_json::{Value, json};

use super::ExternalSample;
use super::code::{Outcome, TestResults, programs_of, quoted};
use super::event_loop::EventLoop;
use super::limits::bounds_of;
use super::module::{self, ModuleError};
use super::permits::ConcurrencyLimit;

/// Modules that the code of completions uses most, imported once.
const IMPORTS: [&str; 16] = [
    "bisect",
    "collections",
    "copy",
    "datetime",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "time",
    "traceback",
    "typing",
];

/// Number of characters of a program's output that a message quotes.
const QUOTED: usize = 300;

/// Tests in an interpreter, whose concurrent runs are limited to the number of processors.
pub(super) struct SandboxedTests {
    runner: Arc<Runner>,
    permits: ConcurrencyLimit,
}

/// An interpreter with the limits of programs.
pub(super) struct Runner {
    pub(super) interpreter: Interpreter,
    pub(super) options: CodeRewardSpec,
}

impl SandboxedTests {
    pub(super) fn new(
        options: CodeRewardSpec,
        wasm: &WasmSpec,
        event_loop: &EventLoop,
    ) -> Result<Self, ModuleError> {
        let runner = Runner::new(&module::load(wasm, event_loop)?, options, wasm)?;
        Ok(Self { runner: Arc::new(runner), permits: ConcurrencyLimit::of_processors() })
    }

    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        let programs = match programs_of(sample, &self.runner.options) {
            Ok(programs) => programs,
            Err(verdict) => return verdict,
        };
        let runner = Arc::clone(&self.runner);
        self.permits.run(move || runner.verdict(&programs)).await
    }
}

/// A test exceeded its time limit, so there is no verdict.
struct Late;

impl Runner {
    pub(super) fn new(module: &[u8], options: CodeRewardSpec, wasm: &WasmSpec) -> Result<Self, WasmError> {
        let mut bounds = bounds_of(wasm);
        bounds.timeout = bounds.timeout.min(Duration::from_secs(options.run_seconds.into()));
        bounds.max_memory_bytes = bounds.max_memory_bytes.min((options.memory_mib as usize) << 20);
        let interpreter = Interpreter::new(module, bounds, &json!({"imports": IMPORTS}))?;
        Ok(Self { interpreter, options })
    }

    /// Runs the programs that test a completion, until their verdict is certain.
    pub(super) fn verdict(&self, programs: &[Program]) -> Verdict {
        let mut results = TestResults::of(programs, self.options.scoring);
        for program in programs {
            let outcome = match &program.assertion {
                None => self.run(program),
                Some(assertion) => self.assert(&program.code, assertion),
            };
            match outcome.map(|outcome| results.add(outcome)) {
                Ok(None) => {}
                Ok(Some(verdict)) => return verdict,
                Err(Late) => return Verdict::timeout(self.interpreter.bounds().reason(SandboxError::Time)),
            }
        }
        results.verdict()
    }

    /// Runs a program on its input, and compares its output with the expected one.
    fn run(&self, program: &Program) -> Result<Outcome, Late> {
        let message = json!({"run": "program", "code": program.code});
        let (mut process, state) = match self.interpreter.start(&message, Some(&program.stdin)) {
            Ok(started) => started,
            Err(broken) => return self.failed(broken),
        };
        let expected = program.expected.as_deref().unwrap_or_default();
        let output = process.take_output();
        let output = String::from_utf8_lossy(&output);
        Ok(match state {
            State::Exited(0) if is_expected(&output, expected) => Outcome::Passed,
            State::Exited(0) => {
                Outcome::Failed(format!("expected {}, got {}", quoted(expected), quoted(&output)))
            }
            State::Exited(code) => {
                Outcome::Failed(format!("exit code {code}: {}", end_of(&process.errors())))
            }
            State::Waits | State::AtClock => Outcome::Failed("it does not end".into()),
        })
    }

    /// Runs an assertion in an interpreter of its own, separate from that of the code.
    fn assert(&self, code: &str, assertion: &str) -> Result<Outcome, Late> {
        match self.exchange(code, assertion) {
            Ok(outcome) => Ok(outcome),
            Err(broken) => self.failed(broken),
        }
    }

    fn exchange(&self, code: &str, assertion: &str) -> Result<Outcome, SandboxError> {
        let (mut code, _) = self.interpreter.start(&json!({"run": "code", "code": code}), None)?;
        let (mut test, mut state) =
            self.interpreter.start(&json!({"run": "test", "test": assertion}), None)?;
        loop {
            // The code's output is only taken as an answer, even if it imitates the driver's messages.
            let answer = code.take_output();
            if answer.is_empty() {
                return Ok(Outcome::Failed("the code ends or waits where it should answer".into()));
            }
            test.push(answer);
            if state == State::Waits {
                state = test.proceed()?;
            }
            let question = test.take_output();
            match state {
                State::Exited(0) => return Ok(Outcome::Passed),
                State::Waits if !question.is_empty() => code.push(question),
                // The answer is incomplete so far.
                State::Waits => {}
                State::Exited(_) | State::AtClock => return Ok(Outcome::Failed(fault(&question))),
            }
            answer_of(&mut code)?;
        }
    }

    /// Returns the outcome of a program that exceeds a limit: a failed test, or an error if the limit depends
    /// on the machine.
    fn failed(&self, broken: SandboxError) -> Result<Outcome, Late> {
        match broken {
            SandboxError::Time => Err(Late),
            other => Ok(Outcome::Failed(self.interpreter.bounds().reason(other))),
        }
    }
}

/// Lets the code answer, unless it has ended.
fn answer_of(code: &mut Process) -> Result<(), SandboxError> {
    if code.is_suspended() { code.proceed().map(drop) } else { Ok(()) }
}

/// Returns the reason that a failed test reports in the last line of its output.
fn fault(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let said = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    let message = said.as_ref().and_then(|said| said[1].as_str()).unwrap_or("it ended");
    end_of(message)
}

/// Returns the end of an error text, because the error follows the stack trace.
fn end_of(text: &str) -> String {
    let text = text.trim_end();
    text.chars().skip(text.chars().count().saturating_sub(QUOTED)).collect()
}
