//! A check in a separate process, which is killed with its children when its time is over.

use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::{Check, Failure};

/// How often a parent asks whether its child has ended.
const POLL: Duration = Duration::from_millis(20);
/// Most bytes of a failed child's output that are repeated.
const MAX_WORDS: usize = 1500;

/// The lines of a check.
///
/// # Errors
/// When it takes longer than `limit`, crashes, or writes no line.
pub(super) fn lines(check: Check, limit: Duration) -> Result<Vec<Value>, Failure> {
    let (mut answer, mut words) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["gpu-check", "--here", &check.name()])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(answer.try_clone()?)
        .stderr(words.try_clone()?)
        .spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            end(&mut child)?;
            return Err(format!("took longer than {} s", limit.as_secs()).into());
        }
        std::thread::sleep(POLL);
    };
    let text = read_all(&mut answer)?;
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !lines.is_empty() && (status.success() || lines.iter().any(|line| line["status"] == "failed")) {
        return Ok(lines);
    }
    let words = read_all(&mut words)?;
    Err(format!("its process ended by {status}: {}", last(&words)).into())
}

/// The end of a process's output.
pub(super) fn last(words: &str) -> &str {
    words[words.ceil_char_boundary(words.len().saturating_sub(MAX_WORDS))..].trim()
}

/// Kills the child and the processes that it started: a training or a peer would keep the GPU's memory.
fn end(child: &mut Child) -> std::io::Result<()> {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        kill_process_group(group, Signal::KILL)?;
    }
    child.wait().map(drop)
}

fn read_all(file: &mut std::fs::File) -> std::io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
