//! Runs of the tiny job on devices and on the CPU, and how far two of them differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rlt_devices::{Counts, StandIn};
use rlt_tests::{fresh_binary, run_folder, tiny_job};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Merges `changes` into `base`; `null` removes a field.
pub(crate) fn merge(base: &mut Value, changes: &Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    base.remove(key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (base, changes) => *base = changes.clone(),
    }
}

/// Returns the tiny job with `changes` for `num_devices` devices, or for the CPU if that is 0.
pub(crate) fn manifest(num_devices: usize, changes: &Value) -> Value {
    let mut manifest = tiny_job();
    // Runs are compared with the CPU's, so both compute in fp32 unless a test says otherwise.
    merge(&mut manifest["spec"], &json!({ "training": { "precision": "Fp32" } }));
    merge(&mut manifest["spec"], changes);
    let device = if num_devices == 0 { "Cpu" } else { "Cuda" };
    merge(&mut manifest["spec"], &json!({ "workers": { "device": device } }));
    manifest
}

/// A run that has succeeded.
pub(crate) struct Run {
    folder: TempDir,
}

impl Run {
    /// Trains the tiny job with `changes` on `num_devices` devices, or on the CPU if that is 0.
    pub(crate) fn new(num_devices: usize, changes: &Value) -> Self {
        Self::with(num_devices, changes, &[])
    }

    pub(crate) fn with(num_devices: usize, changes: &Value, variables: &[(&str, &str)]) -> Self {
        let run = Self { folder: run_folder().unwrap() };
        run.go_on(num_devices, changes, variables);
        run
    }

    /// Trains a job on a machine with `num_devices` devices, which the manifest need not name.
    pub(crate) fn of(num_devices: usize, manifest: &Value) -> Self {
        let run = Self { folder: run_folder().unwrap() };
        run.train(num_devices, manifest, &[]);
        run
    }

    /// Trains a job as [`Run::of`]. Returns what the trainer printed if it fails.
    pub(crate) fn attempt(num_devices: usize, manifest: &Value) -> Result<Self, String> {
        let run = Self { folder: run_folder().unwrap() };
        let output = run.output(num_devices, manifest, &[]);
        if output.status.success() { Ok(run) } else { Err(printed(&output)) }
    }

    /// Trains in the same run folder, where an earlier run may have left files.
    pub(crate) fn go_on(&self, num_devices: usize, changes: &Value, variables: &[(&str, &str)]) {
        self.train(num_devices, &manifest(num_devices, changes), variables);
    }

    fn train(&self, num_devices: usize, manifest: &Value, variables: &[(&str, &str)]) {
        let output = self.output(num_devices, manifest, variables);
        assert!(output.status.success(), "{}", printed(&output));
    }

    /// Runs the trainer in the run folder until it exits.
    fn output(&self, num_devices: usize, manifest: &Value, variables: &[(&str, &str)]) -> Output {
        let path = self.file("job.yaml");
        fs::write(&path, manifest.to_string()).unwrap();
        let mut command = Command::new(fresh_binary("rlt-trainer"));
        command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(self.file("run"));
        if num_devices > 0 {
            command.envs(StandIn::build().unwrap().with_devices(num_devices));
            command.env("RLT_STAND_IN_REPORT", self.file("counts-%p.json"));
        }
        command.envs(variables.iter().copied()).output().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn steps(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("run/metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Weights of the run's own export.
    pub(crate) fn weights(&self) -> Vec<(String, Vec<f64>)> {
        weights_in(&self.file("run/export"))
    }

    /// Weights of the newest checkpoint, as `rlt-trainer export` writes them on a machine without devices.
    pub(crate) fn exported_weights(&self) -> Vec<(String, Vec<f64>)> {
        let mut command = Command::new(fresh_binary("rlt-trainer"));
        command.arg("export").arg(self.file("run")).arg("--output").arg(self.file("exported"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        weights_in(&self.file("exported"))
    }

    /// Returns counts of the work that each process of the run requested of its devices.
    pub(crate) fn counts(&self) -> Vec<Counts> {
        let reports = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_report = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("counts-");
        reports.filter(is_report).map(|path| Counts::read(&path).unwrap()).collect()
    }
}

/// Standard output and standard error of a process.
fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Weights of an exported folder by name, in fp32.
fn weights_in(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let name = ["model.safetensors", "adapter_model.safetensors"];
    let path = name.map(|name| folder.join(name)).into_iter().find(|path| path.exists()).unwrap();
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let number = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    let mut weights: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.to_owned(), tensor.data().chunks_exact(4).map(number).collect()))
        .collect();
    weights.sort_by(|(a, _): &(String, Vec<f64>), (b, _)| a.cmp(b));
    weights
}

/// Runs a job that fails on emulated devices, with the device of `changes`. Returns the exit code, standard
/// error and the number of steps that it trained.
pub(crate) fn refused(num_devices: usize, changes: &Value) -> (Option<i32>, String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = manifest(num_devices, &json!({}));
    merge(&mut job["spec"], changes);
    let path = folder.path().join("job.yaml");
    fs::write(&path, job.to_string()).unwrap();
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(folder.path().join("run"));
    command.envs(StandIn::build().unwrap().with_devices(num_devices));
    let output = command.output().unwrap();
    let steps = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap_or_default();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error, steps.lines().count())
}

/// The largest difference between two runs, over all metrics of all steps and all weights, relative above 1.
#[track_caller]
pub(crate) fn difference(one: &Run, other: &Run) -> f64 {
    let (steps, others) = (one.steps(), other.steps());
    assert_eq!(steps.len(), others.len());
    let mut largest = 0.0_f64;
    for (step, other) in steps.iter().zip(&others) {
        for (name, value) in
            step.as_object().unwrap().iter().filter(|(name, _)| !rlt_tests::depends_on_machine(name))
        {
            let (Some(value), Some(other)) = (value.as_f64(), other[name].as_f64()) else { continue };
            largest = largest.max((value - other).abs() / value.abs().max(1.0));
        }
    }
    let (weights, others) = (one.weights(), other.weights());
    assert!(!weights.is_empty() && weights.len() == others.len());
    for ((name, weight), (other_name, other)) in weights.iter().zip(&others) {
        assert_eq!((name, weight.len()), (other_name, other.len()));
        for (value, other) in weight.iter().zip(other) {
            largest = largest.max((value - other).abs());
        }
    }
    largest
}
