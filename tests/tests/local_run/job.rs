//! The tiny job that tests vary, and helpers to run it and to read its run folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rlt_tests::HeldPort;
pub(crate) use rlt_tests::{merge, tiny_job as tiny, tiny_job_with as tiny_with};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Maximum time that a test waits for something that takes a second on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Number of steps of a run that a test ends: no machine trains as many while a test waits, however slow the
/// test is.
pub(crate) const ENDLESS: u32 = 1_000_000;

/// Changes the tiny job to a model and data from files.
pub(crate) fn on_files(model: &Path, changes: Value) -> Value {
    let mut manifest = tiny();
    merge(
        &mut manifest["spec"],
        json!({ "model": { "architecture": null, "tokenizer": null, "path": model } }),
    );
    merge(&mut manifest["spec"], changes);
    manifest
}

/// A place for one run: a manifest and its run folder.
pub(crate) struct Place {
    root: TempDir,
    port: OnceLock<HeldPort>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code of the process; `None` after a kill.
    pub(crate) code: Option<i32>,
    /// Standard output of the process.
    pub(crate) stdout: String,
    /// Standard error of the process.
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails unless the process ended with `code` and printed all of `words`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        for word in words {
            let said = self.stdout.contains(word) || self.stderr.contains(word);
            assert!(said, "nothing of {word:?} in:\n{}{}", self.stdout, self.stderr);
        }
        self
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { root: rlt_tests::run_folder().unwrap(), port: OnceLock::new() }
    }

    /// A place on disk, for runs whose memory is measured.
    pub(crate) fn on_disk() -> Self {
        Self { root: tempfile::tempdir().unwrap(), port: OnceLock::new() }
    }

    /// Returns the port at which launchers of this place meet, which is the same at every call and is
    /// reserved for them.
    pub(crate) fn port(&self) -> String {
        self.port.get_or_init(|| HeldPort::new().unwrap()).number().to_string()
    }

    /// Returns the path of a file next to the run folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the path of a file or folder in the run folder.
    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.root.path().join("run").join(name)
    }

    /// Writes the manifest; JSON is YAML.
    pub(crate) fn write(&self, manifest: &Value) -> PathBuf {
        let path = self.file("job.yaml");
        fs::write(&path, format!("{manifest:#}")).unwrap();
        path
    }

    /// Starts the trainer on `manifest`.
    pub(crate) fn start(&self, manifest: &Value) -> Child {
        self.start_in(manifest, Vec::new())
    }

    /// Starts a run with variables in its environment.
    pub(crate) fn start_in(&self, manifest: &Value, environment: Vec<(&'static str, String)>) -> Child {
        self.start_with(manifest, &[], environment)
    }

    /// Starts a run with variables and further arguments. There is no terminal to answer questions on.
    pub(crate) fn start_with(
        &self,
        manifest: &Value,
        arguments: &[&str],
        environment: Vec<(&'static str, String)>,
    ) -> Child {
        let path = self.write(manifest);
        let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(self.root.path().join("run"));
        command.args(arguments).envs(environment).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the trainer on `manifest` until it exits.
    pub(crate) fn train(&self, manifest: &Value) -> Ended {
        Ended::of(self.start(manifest).wait_with_output().unwrap())
    }

    /// Waits until the run has logged `num_steps` steps of the training.
    pub(crate) fn wait_for_steps(&self, num_steps: usize) {
        wait_until(&format!("{num_steps} steps"), || self.steps().len() >= num_steps);
    }

    /// Returns the complete lines of `metrics.jsonl`, without the evaluation before the first step.
    pub(crate) fn steps(&self) -> Vec<Value> {
        let is_step = |line: &Value| line["training/phase"] == 1 && line["step"] != 0;
        self.metrics().into_iter().filter(is_step).collect()
    }

    /// The number of the last step of the training that the run has logged; 0 before the first.
    pub(crate) fn last_step(&self) -> u64 {
        self.steps().last().map_or(0, |step| step["step"].as_u64().unwrap())
    }

    /// Returns the complete lines of `metrics.jsonl`.
    pub(crate) fn metrics(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.run("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The lines of `completions.jsonl`.
    pub(crate) fn completions(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.run("completions.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the bytes of the exported weights.
    pub(crate) fn weights(&self) -> Vec<u8> {
        fs::read(self.run("export/model.safetensors")).unwrap()
    }
}

/// Waits for the end of a process that should end soon. A process that does not is killed, and the test
/// fails.
pub(crate) fn end_of(child: Child) -> Ended {
    let pid = child.id().to_string();
    let (ended, is_ended) = channel();
    // Output is read while the process runs, because a full pipe would block it.
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    let output = is_ended.recv_timeout(PATIENCE);
    if output.is_err() {
        let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
    }
    assert!(output.is_ok(), "the process does not end");
    Ended::of(output.unwrap().unwrap())
}

/// Waits until `is_met` is true; `what` names the condition in the failure.
pub(crate) fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_met() {
        assert!(started.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal such as `TERM`.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Returns a small model with its tokenizer as a Hugging Face folder, which the current trainer has exported.
/// Tests of all processes share it.
pub(crate) fn small_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let trainer = fs::metadata(rlt_tests::fresh_binary("rlt-trainer")).unwrap();
        let built = trainer.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("small-model-{built}"));
        let lock = File::create(folder.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        if !folder.exists() {
            let place = Place::new();
            place.train(&tiny_with(json!({ "training": { "steps": 1 } }))).expect(0, &[]);
            let unfinished = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
            copy_files(&place.run("export"), &unfinished);
            fs::rename(unfinished, &folder).unwrap();
        }
        folder
    })
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A copy of [`small_model`] in `folder`, to damage.
pub(crate) fn copy_of_small_model(folder: &Path) {
    copy_files(small_model(), folder);
}
