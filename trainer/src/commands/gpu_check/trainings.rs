//! Whole trainings of a tiny job, on the GPU and on the CPU, in processes of their own.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Failure, Finding, Findings};

/// Largest difference of any metric, relative above 1: roundings of fp32, enlarged by the optimizer's
/// division by small gradients.
const TOLERANCE: f64 = 1e-3;

/// A job that learns little and fast, which tests train too.
const JOB: &str = include_str!("tiny_job.json");

/// That job, of so many layers and steps.
pub(super) fn job(num_layers: u32, steps: u32, device: &str) -> Result<Value, Failure> {
    let mut job: Value = serde_json::from_str(JOB)?;
    let spec = &mut job["spec"];
    spec["model"]["architecture"]["numLayers"] = json!(num_layers);
    spec["training"]["steps"] = json!(steps);
    spec["training"]["precision"] = json!("Fp32");
    spec["workers"]["device"] = json!(device);
    Ok(job)
}

/// Trains `job` in the run folder `folder/run`, going on where a run ended.
pub(super) fn train(folder: &Path, job: &Value) -> Result<(), Failure> {
    let manifest = folder.join("job.yaml");
    std::fs::write(&manifest, job.to_string())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["launch", "--manifest"]).arg(&manifest).arg("--output").arg(folder.join("run"));
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("a training ended by {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

/// The metrics of each step that do not depend on the machine.
fn steps(folder: &Path) -> Result<Vec<Value>, Failure> {
    let text = std::fs::read_to_string(folder.join("run/metrics.jsonl"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// The largest difference, and the metric that has it.
fn difference(one: &[Value], other: &[Value]) -> (f64, String) {
    let is_own = |name: &str| ["timing_s/", "perf/", "timestamp"].iter().any(|own| name.starts_with(own));
    let mut largest = (0.0, String::new());
    for (step, other) in one.iter().zip(other) {
        for (name, value) in step.as_object().into_iter().flatten().filter(|(name, _)| !is_own(name)) {
            let (Some(value), Some(other)) = (value.as_f64(), other[name].as_f64()) else { continue };
            let difference = (value - other).abs() / value.abs().max(1.0);
            if difference > largest.0 {
                largest = (difference, name.clone());
            }
        }
    }
    largest
}

/// Trains on each device of `plan` up to its step, one after the other, in one run folder.
fn trained(plan: &[(&str, u32)]) -> Result<Vec<Value>, Failure> {
    let folder = tempfile::tempdir()?;
    for (device, steps) in plan {
        train(folder.path(), &job(2, *steps, device)?)?;
    }
    steps(folder.path())
}

fn compared(runs: &[(&str, Vec<Value>)], truth: &[Value]) -> Findings {
    let compare = |(name, steps): &(&str, Vec<Value>)| {
        let (error, metric) = difference(truth, steps);
        let holds = steps.len() == truth.len() && !truth.is_empty() && error <= TOLERANCE;
        let figures = [
            ("run", json!(name)),
            ("steps", json!(steps.len())),
            ("error", json!(error)),
            ("metric", json!(metric)),
            ("tolerance", json!(TOLERANCE)),
        ];
        Finding::new(holds, figures)
    };
    runs.iter().map(compare).collect()
}

pub(super) fn same_numbers() -> Result<Findings, Failure> {
    let truth = trained(&[("Cpu", 3)])?;
    Ok(compared(&[("on the GPU", trained(&[("Cuda", 3)])?)], &truth))
}

pub(super) fn across() -> Result<Findings, Failure> {
    let truth = trained(&[("Cpu", 3)])?;
    let runs = [
        ("begun on the GPU, ended on the CPU", trained(&[("Cuda", 1), ("Cpu", 3)])?),
        ("begun on the CPU, ended on the GPU", trained(&[("Cpu", 1), ("Cuda", 3)])?),
    ];
    Ok(compared(&runs, &truth))
}
