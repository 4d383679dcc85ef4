//! The peer of a GRPO step: a Python script inside this binary, which needs torch and transformers.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::finding::last;
use super::super::is_stand_in;
use super::super::workload::GrpoLoad;

const SCRIPT: &str = include_str!("../../../../benches/peers/gpu_grpo_step.py");
/// Environment variable with the Python to use; `python3` by default.
const PYTHON_VARIABLE: &str = "RLT_PEER_PYTHON";

/// Times of the peer's fastest step so far.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PeerTimes {
    /// Names and versions of the peer's packages.
    pub(super) versions: String,
    pub(super) rollout_seconds: f64,
    pub(super) reference_seconds: f64,
    pub(super) update_seconds: f64,
    /// Whether the peer was ended at its limit, before it had measured all of its steps.
    #[serde(skip)]
    pub(super) was_ended: bool,
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

/// A line of the script's output.
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
        // Python's torch does not recognize the emulated device.
        "device": if is_stand_in() { "cpu" } else { "cuda" },
        "num_prompts": load.num_prompts,
        "samples_per_prompt": load.samples_per_prompt,
        "prompt_len": load.prompt_len,
        "new_tokens": load.new_tokens,
        "max_tokens": load.max_tokens,
        "rounds": rounds,
    });
    let mut command = Command::new(&python);
    // `GOMP_SPINCOUNT` is set for this program only: the peer has its own defaults.
    command.args(["-c", SCRIPT]).env("HF_HUB_OFFLINE", "1").env_remove("GOMP_SPINCOUNT");
    if is_stand_in() {
        // Python's torch would load the libraries of the emulated device as its own.
        command.env_remove("LD_LIBRARY_PATH");
    }
    let mut peer = Peer::start(python, command, &task)?;
    let status = wait_for(&mut peer.child, limit).map_err(|error| failed(&error))?;
    peer.times(status, limit)
}

fn failed(error: &std::io::Error) -> Unmeasured {
    Unmeasured::Failed(error.to_string())
}

/// The process of a peer. Its output goes to files, so that it never waits for a reader.
struct Peer {
    /// Name of the program in errors.
    python: String,
    child: Child,
    out: File,
    stderr: File,
}

impl Peer {
    fn start(python: String, mut command: Command, task: &Value) -> Result<Self, Unmeasured> {
        let files = || -> std::io::Result<[File; 2]> { Ok([tempfile::tempfile()?, tempfile::tempfile()?]) };
        let [out, stderr] = files().map_err(|error| failed(&error))?;
        let pipes = out.try_clone().and_then(|out| Ok((out, stderr.try_clone()?)));
        let (to_out, to_stderr) = pipes.map_err(|error| failed(&error))?;
        command.stdin(Stdio::piped()).stdout(to_out).stderr(to_stderr);
        let mut child = command
            .spawn()
            .map_err(|error| Unmeasured::Missing(format!("no Python to run a peer: {python}: {error}")))?;
        if let Some(mut input) = child.stdin.take() {
            // The write fails if the script has ended early; the script then reports the reason itself.
            let _ = input.write_all(task.to_string().as_bytes());
        }
        Ok(Self { python, child, out, stderr })
    }

    /// Reads the times of an ended process, whose `status` is `None` if it was killed at its limit. The
    /// script writes a line after each measured step, so a killed process loses only its unfinished step.
    fn times(self, status: Option<ExitStatus>, limit: Duration) -> Result<PeerTimes, Unmeasured> {
        let Self { python, out, stderr, .. } = self;
        let (out, stderr) = (read_all(out), read_all(stderr));
        match (out.lines().last().and_then(|line| serde_json::from_str(line).ok()), status) {
            (Some(Answer::Times(times)), status) => Ok(PeerTimes { was_ended: status.is_none(), ..times }),
            (Some(Answer::Missing { missing }), _) => {
                Err(Unmeasured::Missing(format!("{python}: {missing}")))
            }
            (None, Some(status)) => {
                Err(Unmeasured::Failed(format!("{python} ended by {status}: {}", last(&stderr))))
            }
            (None, None) => {
                let (seconds, stderr) = (limit.as_secs(), last(&stderr));
                Err(Unmeasured::Failed(format!("{python} took longer than {seconds} s: {stderr}")))
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest that a test waits for a shell.
    const PATIENCE: Duration = Duration::from_secs(100);

    /// Runs a shell script as a peer, and kills it when it has made the file `done`.
    fn killed(script: &str) -> Result<PeerTimes, Unmeasured> {
        let folder = tempfile::tempdir().unwrap();
        let done = folder.path().join("done");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("cat >/dev/null; {script}; touch {}; exec sleep 1000", done.display())]);
        let mut peer = Peer::start("peer".into(), command, &json!({})).unwrap();
        let started = Instant::now();
        while !done.exists() {
            assert!(started.elapsed() < PATIENCE, "the script does not come to its end");
            std::thread::sleep(Duration::from_millis(5));
        }
        peer.child.kill().unwrap();
        peer.child.wait().unwrap();
        peer.times(None, Duration::from_secs(7))
    }

    fn line(seconds: f64) -> String {
        let times = json!({
            "versions": "peer 1", "rollout_seconds": seconds, "reference_seconds": 1, "update_seconds": 2
        });
        format!("echo '{times}'")
    }

    #[test]
    fn a_peer_that_is_killed_keeps_the_times_of_the_steps_before() {
        let times = killed(&format!("{}; {}", line(9.0), line(5.0))).unwrap();
        assert_eq!((times.seconds(), times.was_ended), (8.0, true));
        let Err(Unmeasured::Failed(error)) = killed("echo in the first step >&2") else {
            panic!("no step was measured")
        };
        assert_eq!(error, "peer took longer than 7 s: in the first step");
    }
}
