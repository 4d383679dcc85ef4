//! Runs a check in a child process with a time limit.
//!
//! The parent forwards findings and standard error as the child writes them, so a check that hangs or crashes
//! keeps what it has reported. After the time limit the child's process group is killed.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rlt_api::ExitCode;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::finding::{MAX_STDERR, last};
use super::{Check, GpuCheckArgs};

/// Interval at which the parent asks whether its child has ended.
const POLL: Duration = Duration::from_millis(20);
/// Time that a killed process may take to end. A process inside the driver cannot be killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// Outputs that wait to be forwarded. A child that writes more has to wait, as at a full pipe.
const MAX_PENDING: usize = 64;

/// Receives the findings of a check, one JSON object each.
type Write<'a> = dyn FnMut(&Value) -> std::io::Result<()> + 'a;

/// Output of a child process.
enum Output {
    /// A finding, from standard output.
    Finding(Value),
    /// Bytes of standard error, or a line of standard output that is no finding.
    Stderr(Vec<u8>),
}

/// Runs a check in a child process and passes its findings to `write`. Returns an error message if the check
/// failed without reporting a failed finding.
///
/// # Errors
/// When `write` fails.
pub(super) fn run(
    check: Check,
    args: &GpuCheckArgs,
    limit: Duration,
    write: &mut Write<'_>,
) -> std::io::Result<Option<String>> {
    let started = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu-check", "--here"]).args(args.no_peer.then_some("--no-peer"));
    command.arg("--trace-folder").arg(&args.trace_folder).arg(check.name());
    let mut running = match Running::start(command) {
        Ok(running) => running,
        Err(error) => return Ok(Some(format!("cannot start the process of the check: {error}"))),
    };
    loop {
        running.forward(POLL, write)?;
        if let Some(status) = running.process.try_wait()? {
            running.forward_rest(write)?;
            return Ok(running.problem(status));
        }
        if started.elapsed() > limit {
            return running.end(limit, write).map(Some);
        }
    }
}

/// The child process of a check.
struct Running {
    process: Child,
    output: Receiver<Output>,
    /// Findings so far, and those of them that failed.
    num_findings: usize,
    num_failed: usize,
    /// The last bytes of standard error.
    stderr_tail: Vec<u8>,
    /// Time that the process may take to end after it was killed.
    kill_timeout: Duration,
    /// Standard error of this process. It buffers a character whose bytes arrive in two outputs.
    messages: rlt_terminal::Output<std::io::Stderr>,
}

impl Running {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let mut process = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, output) = sync_channel(MAX_PENDING);
        if let Some(stdout) = process.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || read_findings(stdout, &sender));
        }
        if let Some(stderr) = process.stderr.take() {
            std::thread::spawn(move || read_stderr(stderr, &sender));
        }
        let messages = rlt_terminal::messages();
        Ok(Self {
            process,
            output,
            num_findings: 0,
            num_failed: 0,
            stderr_tail: Vec::new(),
            kill_timeout: KILL_TIMEOUT,
            messages,
        })
    }

    /// Forwards the child's output for the time `wait`, or one output if that is over. Returns whether more
    /// may follow.
    fn forward(&mut self, wait: Duration, write: &mut Write<'_>) -> std::io::Result<bool> {
        let until = Instant::now() + wait;
        loop {
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Output::Finding(finding)) => {
                    self.num_findings += 1;
                    self.num_failed += usize::from(finding["status"] == "failed");
                    write(&finding)?;
                }
                Ok(Output::Stderr(bytes)) => {
                    // Standard error of this process may be closed; the check continues without it.
                    let _ = self.messages.write_all(&bytes);
                    self.stderr_tail.extend(bytes);
                    let surplus = self.stderr_tail.len().saturating_sub(2 * MAX_STDERR);
                    self.stderr_tail.drain(..surplus);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(true),
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    return Ok(false);
                }
            }
            // A child that never stops writing must still reach its time limit.
            if Instant::now() >= until {
                return Ok(true);
            }
        }
    }

    /// Forwards the remaining output of a process that has ended. Processes that it started may keep its
    /// pipes open, so the wait is limited.
    fn forward_rest(&mut self, write: &mut Write<'_>) -> std::io::Result<()> {
        let until = Instant::now() + self.kill_timeout;
        while self.forward(POLL, write)? && Instant::now() < until {}
        Ok(())
    }

    /// Returns the error of a process that ended by itself, unless its findings report the failure.
    fn problem(&self, status: ExitStatus) -> Option<String> {
        let has_passed = status.success() && self.num_findings > 0;
        let has_reported = status.code() == Some(ExitCode::Failure.code().into()) && self.num_failed > 0;
        let ended = || format!("its process ended by {status}{}", self.stderr_text());
        (!has_passed && !has_reported).then(ended)
    }

    /// Returns the end of standard error after a colon, or nothing if the process wrote none.
    fn stderr_text(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr_tail);
        if text.trim().is_empty() { String::new() } else { format!(": {}", last(&text)) }
    }

    /// Kills a process that has exceeded its time limit and forwards what it wrote. Returns the error.
    fn end(&mut self, limit: Duration, write: &mut Write<'_>) -> std::io::Result<String> {
        let has_ended = self.kill()?;
        self.forward_rest(write)?;
        let note = if has_ended { "" } else { ", and its process cannot be killed" };
        Ok(format!("took longer than {} s{note}{}", limit.as_secs(), self.stderr_text()))
    }

    /// Kills the process group: a training or a peer that the check started would keep the GPU's memory.
    /// Returns whether the process has ended.
    fn kill(&mut self) -> std::io::Result<bool> {
        if let Some(group) = Pid::from_raw(self.process.id() as i32) {
            // The process may have ended in the meantime.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let until = Instant::now() + self.kill_timeout;
        loop {
            if self.process.try_wait()?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Sends every line of standard output: JSON objects as findings, other lines as standard error.
fn read_findings(pipe: impl Read, to: &SyncSender<Output>) {
    for line in BufReader::new(pipe).split(b'\n') {
        let Ok(line) = line else { return };
        let output = match serde_json::from_slice(&line) {
            Ok(finding @ Value::Object(_)) => Output::Finding(finding),
            _ => Output::Stderr([line, b"\n".to_vec()].concat()),
        };
        if to.send(output).is_err() {
            return;
        }
    }
}

fn read_stderr(mut pipe: impl Read, to: &SyncSender<Output>) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = pipe.read(&mut buffer) {
        if to.send(Output::Stderr(buffer[..len].to_vec())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as a check; returns its findings and the error.
    fn outcome(script: &str, kills: bool) -> (Vec<Value>, Option<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut running = Running::start(command).unwrap();
        let mut lines = Vec::new();
        let mut write = |line: &Value| -> std::io::Result<()> {
            lines.push(line.clone());
            Ok(())
        };
        if kills {
            while running.num_findings == 0 {
                running.forward(POLL, &mut write).unwrap();
            }
            assert!(running.kill().unwrap());
        }
        let status = running.process.wait().unwrap();
        running.forward_rest(&mut write).unwrap();
        let problem = running.problem(status);
        (lines, problem)
    }

    const PASSED: &str = r#"echo '{"status":"passed"}'"#;
    const FAILED: &str = r#"echo '{"status":"failed"}'"#;

    #[test]
    fn a_check_that_reports_its_own_failure_gets_no_second_error() {
        assert_eq!(outcome(PASSED, false), (vec![serde_json::json!({ "status": "passed" })], None));
        let (lines, problem) = outcome(&format!("{PASSED}; {FAILED}; exit 1"), false);
        assert_eq!((lines.len(), problem), (2, None));
        let (lines, problem) = outcome("echo not a finding; echo 17", false);
        assert!(lines.is_empty() && problem.unwrap().ends_with("not a finding\n17"));
    }

    #[test]
    fn a_check_that_crashes_keeps_its_findings_and_fails_with_the_end_of_its_standard_error() {
        for failing in [PASSED, FAILED] {
            let (lines, problem) = outcome(&format!("{failing}; echo why >&2; kill -SEGV $$"), false);
            assert_eq!(lines.len(), 1);
            let problem = problem.unwrap();
            assert!(problem.contains("signal: 11") && problem.ends_with(": why"), "{problem}");
        }
        // A panic.
        let (lines, problem) = outcome(&format!("{FAILED}; exit 101"), false);
        assert!(lines.len() == 1 && problem.unwrap().contains("101"));
    }

    #[test]
    fn forwarding_ends_in_time_though_the_child_keeps_writing() {
        let mut running = Running::start(Command::new("true")).unwrap();
        let (sender, output) = sync_channel(2);
        (0..2).for_each(|_| sender.send(Output::Stderr(Vec::new())).unwrap());
        running.output = output;
        assert!(running.forward(Duration::ZERO, &mut |_| Ok(())).unwrap());
        assert!(running.output.try_recv().is_ok(), "the second output waits for the next call");
        assert!(running.process.wait().unwrap().success());
    }

    #[test]
    fn a_check_that_is_killed_keeps_its_findings_and_leaves_no_process() {
        let (lines, problem) = outcome(&format!("trap '' TERM; sleep 1000 & {PASSED}; wait"), true);
        assert_eq!(lines.len(), 1);
        assert!(problem.unwrap().contains("signal: 9"));
    }

    /// The process leads no group, so the signal misses it, as it misses a process inside the driver.
    #[test]
    fn a_process_that_cannot_be_killed_is_reported_after_a_limited_wait() {
        let mut running = Running::start(Command::new("true")).unwrap();
        assert!(running.process.wait().unwrap().success());
        // A process that cannot be killed keeps its pipes open.
        let (_open, output) = sync_channel(1);
        running.output = output;
        running.process = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        running.kill_timeout = Duration::from_millis(50);
        let error = running.end(Duration::from_secs(7), &mut |_| Ok(())).unwrap();
        let is_running = running.process.try_wait().unwrap().is_none();
        running.process.kill().unwrap();
        running.process.wait().unwrap();
        assert!(is_running);
        assert_eq!(error, "took longer than 7 s, and its process cannot be killed");
    }
}
