//! Unit tests of a completion's code, run by a SandboxFusion: its `run_code` protocol.

use rlt_api::spec::{CodeRewardSpec, CodeScoring};
use rlt_core::reward::Verdict;
use rlt_core::reward::code::{CodeTests, Program, code_of, is_expected};
use serde_json::{Value, json};

use super::ExternalSample;
use super::endpoint::{Endpoint, NoAnswer};

/// Characters of what a program wrote that a message quotes.
const QUOTED: usize = 200;

/// A SandboxFusion and how programs run in it.
pub(super) struct CodeServer {
    pub(super) endpoint: Endpoint,
    pub(super) options: CodeRewardSpec,
}

/// How one test ended.
enum Outcome {
    Passed,
    Failed(String),
    /// No test can pass.
    DoesNotCompile(String),
}

impl CodeServer {
    pub(super) async fn judge(&self, sample: &ExternalSample) -> Verdict {
        let tests = match CodeTests::parse(&sample.prompt.ground_truth) {
            Ok(tests) => tests,
            Err(error) => return Verdict::infra(error.to_string()),
        };
        let code = code_of(&sample.completion);
        if code.trim().is_empty() {
            return Verdict::wrong(0.0, "the completion has no code");
        }
        let programs = tests.programs(code, self.options.max_tests as usize);
        self.run_all(&programs).await.unwrap_or_else(|no_answer| no_answer.verdict())
    }

    async fn run_all(&self, programs: &[Program]) -> Result<Verdict, NoAnswer> {
        let (mut num_passed, mut fault) = (0, None);
        for (idx, program) in programs.iter().enumerate() {
            match self.run(program).await? {
                Outcome::Passed => num_passed += 1,
                Outcome::Failed(message) => {
                    let test = idx + 1;
                    fault = fault.or_else(|| Some(format!("test {test} of {}: {message}", programs.len())));
                    if self.options.scoring == CodeScoring::All {
                        break;
                    }
                }
                Outcome::DoesNotCompile(message) => {
                    return Ok(Verdict::wrong(0.0, format!("does not compile: {message}")));
                }
            }
        }
        let share = f64::from(num_passed) / programs.len().max(1) as f64;
        Ok(match (fault, self.options.scoring) {
            (None, _) => Verdict::ok(1.0),
            (Some(message), CodeScoring::Fraction) => Verdict::wrong(share, message),
            (Some(message), CodeScoring::All) => Verdict::wrong(0.0, message),
        })
    }

    async fn run(&self, program: &Program) -> Result<Outcome, NoAnswer> {
        let CodeRewardSpec { language, run_seconds, memory_mib, .. } = &self.options;
        let question = || {
            Ok(json!({
                "code": program.code,
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

/// Reads an answer; an error where it is none or the sandbox itself failed.
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

/// Whether a program ended by itself and with success.
fn is_finished(result: &Value) -> bool {
    result["status"] == "Finished" && result["return_code"].as_i64().is_none_or(|code| code == 0)
}

fn how_it_ended(result: &Value) -> String {
    match result["status"].as_str() {
        Some("TimeLimitExceeded") => "it ran out of time".to_owned(),
        _ => {
            let stderr = result["stderr"].as_str().unwrap_or_default().trim_end();
            // What went wrong is at the end of a trace.
            let skipped = stderr.chars().count().saturating_sub(QUOTED);
            format!(
                "exit code {}: {}",
                result["return_code"],
                stderr.chars().skip(skipped).collect::<String>()
            )
        }
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED).collect::<String>())
}
