//! The peer of a GRPO step: a Python script inside this binary, which needs torch and transformers.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::finding::last;
use super::super::workload::GrpoLoad;
use super::super::{Failure, is_stand_in};

const SCRIPT: &str = include_str!("../../../../benches/peers/gpu_grpo_step.py");
/// Environment variable with the Python to use; `python3` by default.
const PYTHON_VARIABLE: &str = "RLT_PEER_PYTHON";

/// Times of the peer's fastest step.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PeerTimes {
    /// Names and versions of the peer's packages.
    pub(super) versions: String,
    pub(super) rollout_seconds: f64,
    pub(super) reference_seconds: f64,
    pub(super) update_seconds: f64,
}

impl PeerTimes {
    pub(super) fn seconds(&self) -> f64 {
        self.rollout_seconds + self.reference_seconds + self.update_seconds
    }
}

/// The reason why the peer has no times.
#[derive(Clone, Debug)]
pub(super) enum Unmeasured {
    /// This machine has no Python, or lacks packages.
    Missing(String),
    /// The script failed although its packages are installed.
    Failed(String),
}

/// Output of the script.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Times(PeerTimes),
    Missing { missing: String },
}

/// Measures steps of the peer on a model with this `config.json`.
///
/// # Errors
/// [`Unmeasured`].
pub(super) fn times(
    document: &Value,
    load: GrpoLoad,
    rounds: usize,
    limit: Duration,
) -> Result<PeerTimes, Unmeasured> {
    let python = std::env::var(PYTHON_VARIABLE).unwrap_or_else(|_| "python3".to_owned());
    let task = json!({
        "config": document,
        // A device of CPU memory is none that Python's torch knows.
        "device": if is_stand_in() { "cpu" } else { "cuda" },
        "num_prompts": load.num_prompts,
        "samples_per_prompt": load.samples_per_prompt,
        "prompt_len": load.prompt_len,
        "new_tokens": load.new_tokens,
        "max_tokens": load.max_tokens,
        "rounds": rounds,
    });
    let answered = |error: Failure| Unmeasured::Failed(error.to_string());
    let mut command = Command::new(&python);
    // The setting of OpenMP is ours: the peer has its own defaults.
    command.args(["-c", SCRIPT]).env("HF_HUB_OFFLINE", "1").env_remove("GOMP_SPINCOUNT");
    if is_stand_in() {
        // Python's torch would open the libraries of the device of CPU memory as its own.
        command.env_remove("LD_LIBRARY_PATH");
    }
    let out = tempfile::tempfile().map_err(|error| answered(error.into()))?;
    let stderr = tempfile::tempfile().map_err(|error| answered(error.into()))?;
    let pipes = out.try_clone().and_then(|out| Ok((out, stderr.try_clone()?)));
    let (to_out, to_stderr) = pipes.map_err(|error| answered(error.into()))?;
    command.stdin(Stdio::piped()).stdout(to_out).stderr(to_stderr);
    let mut child = command
        .spawn()
        .map_err(|error| Unmeasured::Missing(format!("no Python to run a peer: {python}: {error}")))?;
    if let Some(mut input) = child.stdin.take() {
        // A script that ended before it read says why itself.
        let _ = input.write_all(task.to_string().as_bytes());
    }
    let status = wait_for(&mut child, limit).map_err(|error| answered(error.into()))?;
    let (out, stderr) = (read_all(out), read_all(stderr));
    let Some(status) = status else {
        let (seconds, stderr) = (limit.as_secs(), last(&stderr));
        return Err(Unmeasured::Failed(format!("{python} took longer than {seconds} s: {stderr}")));
    };
    match out.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        Some(Answer::Times(times)) => Ok(times),
        Some(Answer::Missing { missing }) => Err(Unmeasured::Missing(format!("{python}: {missing}"))),
        None => Err(Unmeasured::Failed(format!("{python} ended by {status}: {}", last(&stderr)))),
    }
}

/// Waits for the child; returns `None` if it was killed at its time limit.
fn wait_for(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    const POLL: Duration = Duration::from_millis(20);
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            // If the process does not end, the parent of this check kills it with the process group.
            return child.kill().map(|()| None);
        }
        std::thread::sleep(POLL);
    }
}

/// Reads all that a child has written to a file.
fn read_all(mut file: File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
