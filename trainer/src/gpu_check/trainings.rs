//! Whole trainings of a tiny job, on the GPU and on the CPU, in processes of their own.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Failure, Finding, Findings};

/// Largest difference of any metric, relative above 1: roundings of fp32, enlarged by the optimizer's
/// division by small gradients.
const TOLERANCE: f64 = 1e-3;

/// A job that learns little and fast, of so many layers and steps.
pub(super) fn job(num_layers: u32, steps: u32, device: &str) -> Value {
    json!({
        "apiVersion": "rltraining.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": { "name": "gpu-check" },
        "spec": {
            "model": {
                "architecture": {
                    "family": "Llama", "hiddenSize": 64, "intermediateSize": 128, "numLayers": num_layers,
                    "numHeads": 4, "maxPositionEmbeddings": 64
                },
                "tokenizer": { "characters": "0123456789+=" }
            },
            "data": {
                "task": {
                    "kind": "Arithmetic", "operators": ["+"], "maxOperand": 9, "numTrain": 16, "numHeldOut": 4
                },
                "maxPromptTokens": 8
            },
            "rewards": { "functions": [{ "name": "small", "kind": "Format", "pattern": "[0-4].*" }] },
            "algorithm": { "kind": "GRPO" },
            "rollout": { "samplesPerPrompt": 4, "maxCompletionTokens": 4 },
            "training": {
                "steps": steps, "promptsPerStep": 2, "precision": "Fp32", "evaluateEvery": 0,
                "optimizer": { "learningRate": 0.01 }
            },
            "checkpoint": { "everySteps": 1 },
            "workers": { "device": device, "threads": 1 }
        }
    })
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
        train(folder.path(), &job(2, *steps, device))?;
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
