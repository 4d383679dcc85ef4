//! Unit tests of a completion's code: their score, and their execution by a SandboxFusion server
//! (`run_code`).

use rlt_api::spec::{CodeRewardSpec, CodeScoring};
use rlt_core::reward::Verdict;
use rlt_core::reward::code::{CodeTests, Program, code_of, is_expected};
use serde_json::{Value, json};

use super::ExternalSample;
use super::endpoint::{Endpoint, RequestError};

/// Number of characters of a program's output that a message quotes.
const QUOTED: usize = 200;

/// A SandboxFusion server with the limits of programs.
pub(super) struct CodeServer {
    pub(super) endpoint: Endpoint,
    pub(super) options: CodeRewardSpec,
}

/// Outcome of one test.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    Passed,
    Failed(String),
    /// The code does not compile, so no test can pass.
    DoesNotCompile(String),
}

/// Returns the programs that test a completion, or the verdict if there is nothing to run.
pub(super) fn programs_of(
    sample: &ExternalSample,
    options: &CodeRewardSpec,
) -> Result<Vec<Program>, Verdict> {
    let tests = CodeTests::parse(&sample.prompt.ground_truth);
    let tests = tests.map_err(|error| Verdict::infra(error.to_string()))?;
    let code = code_of(&sample.completion);
    if code.trim().is_empty() {
        return Err(Verdict::wrong(0.0, "the completion has no code"));
    }
    Ok(tests.programs(code, options.max_tests as usize))
}

/// Counts of a completion's tests by outcome.
pub(super) struct TestResults {
    scoring: CodeScoring,
    num_programs: usize,
    num_run: usize,
    num_passed: u32,
    fault: Option<String>,
}

impl TestResults {
    pub(super) fn of(programs: &[Program], scoring: CodeScoring) -> Self {
        Self { scoring, num_programs: programs.len(), num_run: 0, num_passed: 0, fault: None }
    }

    /// Counts the next test. Returns the verdict if further tests cannot change it.
    pub(super) fn add(&mut self, outcome: Outcome) -> Option<Verdict> {
        self.num_run += 1;
        match outcome {
            Outcome::Passed => self.num_passed += 1,
            Outcome::Failed(message) => {
                let message = format!("test {} of {}: {message}", self.num_run, self.num_programs);
                self.fault.get_or_insert(message);
                return (self.scoring == CodeScoring::All).then(|| self.verdict());
            }
            Outcome::DoesNotCompile(message) => {
                return Some(Verdict::wrong(0.0, format!("does not compile: {message}")));
            }
        }
        None
    }

    pub(super) fn verdict(&self) -> Verdict {
        let share = f64::from(self.num_passed) / self.num_programs.max(1) as f64;
        match (&self.fault, self.scoring) {
            (None, _) => Verdict::ok(1.0),
            (Some(message), CodeScoring::Fraction) => Verdict::wrong(share, message),
            (Some(message), CodeScoring::All) => Verdict::wrong(0.0, message),
        }
    }
}

impl CodeServer {
    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        match programs_of(sample, &self.options) {
            Ok(programs) => self.run_all(&programs).await.unwrap_or_else(|no_answer| no_answer.verdict()),
            Err(verdict) => verdict,
        }
    }

    async fn run_all(&self, programs: &[Program]) -> Result<Verdict, RequestError> {
        let mut results = TestResults::of(programs, self.options.scoring);
        for program in programs {
            if let Some(verdict) = results.add(self.run(program).await?) {
                return Ok(verdict);
            }
        }
        Ok(results.verdict())
    }

    async fn run(&self, program: &Program) -> Result<Outcome, RequestError> {
        let CodeRewardSpec { language, run_seconds, memory_mib, .. } = &self.options;
        let question = || {
            Ok(json!({
                "code": program.with_assertion(),
                "stdin": program.stdin,
                "language": language,
                "compile_timeout": run_seconds,
                "run_timeout": run_seconds,
                "memory_limit_MB": memory_mib,
                "files": {},
                "fetch_files": [],
            }))
        };
        let mut outcome = Outcome::Passed;
        self.endpoint
            .ask(question, |answer| {
                outcome = read(&answer, program.expected.as_deref())?;
                Ok(())
            })
            .await?;
        Ok(outcome)
    }
}

/// Reads an answer. Fails if it is invalid, or the sandbox itself failed.
fn read(answer: &Value, expected: Option<&str>) -> Result<Outcome, String> {
    let (compiled, ran) = (&answer["compile_result"], &answer["run_result"]);
    match answer["status"].as_str() {
        Some("Success") if is_finished(ran) => Ok(match expected {
            None => Outcome::Passed,
            Some(expected) => {
                let output = ran["stdout"].as_str().unwrap_or_default();
                if is_expected(output, expected) {
                    Outcome::Passed
                } else {
                    Outcome::Failed(format!("expected {}, got {}", quoted(expected), quoted(output)))
                }
            }
        }),
        Some("Failed") if compiled.is_object() && !is_finished(compiled) => {
            Ok(Outcome::DoesNotCompile(how_it_ended(compiled)))
        }
        Some("Failed") if ran.is_object() => Ok(Outcome::Failed(how_it_ended(ran))),
        _ => Err(format!("the sandbox failed: {}", quoted(&answer.to_string()))),
    }
}

/// Whether a program exited successfully.
fn is_finished(result: &Value) -> bool {
    result["status"] == "Finished" && result["return_code"].as_i64().is_none_or(|code| code == 0)
}

fn how_it_ended(result: &Value) -> String {
    match result["status"].as_str() {
        Some("TimeLimitExceeded") => "it ran out of time".to_owned(),
        _ => {
            let stderr = result["stderr"].as_str().unwrap_or_default().trim_end();
            // The error is at the end of a stack trace.
            let skipped = stderr.chars().count().saturating_sub(QUOTED);
            format!(
                "exit code {}: {}",
                result["return_code"],
                stderr.chars().skip(skipped).collect::<String>()
            )
        }
    }
}

pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED).collect::<String>())
}
