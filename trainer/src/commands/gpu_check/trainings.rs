//! Runs full trainings of a tiny job on the GPU and on the CPU, in separate processes, and compares their
//! metrics.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Failure, Finding, Report};

/// Largest allowed difference of a metric, relative for values above 1: rounding of fp32, amplified where the
/// optimizer divides by small gradients.
const TOLERANCE: f64 = 1e-3;
/// Learning rate of the trainings. AdamW turns the rounding of a gradient near 0 into a step of up to this
/// size, so correct trainings would differ by [`TOLERANCE`] at a larger rate. At this rate correct steps
/// still change metrics by more than the tolerance.
const LEARNING_RATE: f64 = 1e-3;

/// Largest allowed difference of a token's probability between rollout and actor in bf16: a few roundings of
/// logits.
const PROBABILITY_TOLERANCE: f64 = 3e-2;
/// Name of the metric with that difference.
const PROBABILITY_DIFFERENCE: &str = "training/rollout_probs_diff_max";

/// Manifest of a job that learns a little in a short time, which tests use, too.
const JOB: &str = include_str!("tiny_job.json");

/// Returns the job with this number of layers and steps.
pub(super) fn job(num_layers: u32, steps: u32, device: &str) -> Result<Value, Failure> {
    let mut job: Value = serde_json::from_str(JOB)?;
    let spec = &mut job["spec"];
    spec["model"]["architecture"]["numLayers"] = json!(num_layers);
    spec["training"]["steps"] = json!(steps);
    spec["training"]["precision"] = json!("Fp32");
    spec["training"]["optimizer"]["learningRate"] = json!(LEARNING_RATE);
    spec["workers"]["device"] = json!(device);
    Ok(job)
}

/// Trains `job` in the run folder `folder/run`, which may continue an earlier run.
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

/// Returns the metrics of each step that do not depend on the machine.
fn steps(folder: &Path) -> Result<Vec<Value>, Failure> {
    let text = std::fs::read_to_string(folder.join("run/metrics.jsonl"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Whether a metric depends on the machine.
fn is_own(name: &str) -> bool {
    ["timing_s/", "perf/", "timestamp"].iter().any(|own| name.starts_with(own))
}

/// Returns the largest difference of the metrics of the step `one`, relative for values above 1, and the name
/// of that metric. A metric that `other` lacks differs infinitely. `other` may have more, such as those of an
/// evaluation at the end of a run that is resumed.
fn difference(one: &Value, other: &Value) -> (f64, String) {
    let mut largest = (0.0, String::new());
    for (name, value) in one.as_object().into_iter().flatten().filter(|(name, _)| !is_own(name)) {
        // A metric that is not finite is null in JSON.
        let difference = match (value.as_f64(), other[name].as_f64()) {
            (Some(value), Some(other)) => (value - other).abs() / value.abs().max(1.0),
            (None, None) => 0.0,
            _ => f64::INFINITY,
        };
        if difference > largest.0 {
            largest = (difference, name.clone());
        }
    }
    largest
}

/// Trains on each device of `plan` up to its step, one after the other, in the same run folder.
fn trained(plan: &[(&str, u32)]) -> Result<Vec<Value>, Failure> {
    let folder = tempfile::tempdir()?;
    for (device, steps) in plan {
        train(folder.path(), &job(2, *steps, device)?)?;
    }
    steps(folder.path())
}

/// Compares the metrics of a run with those of the CPU, step by step. Only the first step has equal weights;
/// [`LEARNING_RATE`] bounds how far rounding moves the others.
fn compared(name: &str, steps: &[Value], truth: &[Value]) -> Finding {
    let errors: Vec<(f64, String)> =
        truth.iter().zip(steps).map(|(one, other)| difference(one, other)).collect();
    let largest = errors.iter().max_by(|one, other| one.0.total_cmp(&other.0)).cloned().unwrap_or_default();
    let holds = steps.len() == truth.len() && !truth.is_empty() && largest.0 <= TOLERANCE;
    let figures = [
        ("run", json!(name)),
        ("steps", json!(steps.len())),
        ("error", json!(largest.0)),
        ("metric", json!(largest.1)),
        ("errorsOfSteps", json!(errors)),
        ("tolerance", json!(TOLERANCE)),
    ];
    Finding::new(holds, figures)
}

/// Checks gradients and trainings on the GPU: in fp32 against the CPU, in bf16 against the rollout, and twice
/// with `deterministic: true`.
pub(super) fn same_numbers(report: &mut Report<'_>) -> Result<(), Failure> {
    super::gradients::check(report)?;
    let truth = trained(&[("Cpu", 3)])?;
    report(compared("on the GPU", &trained(&[("Cuda", 3)])?, &truth))?;
    let [first, second] = [in_bf16()?, in_bf16()?];
    report(as_sampled(&first))?;
    report(repeated(&first, &second))
}

/// Runs a training in bf16 on the GPU with `deterministic: true`; returns its steps.
fn in_bf16() -> Result<Vec<Value>, Failure> {
    let folder = tempfile::tempdir()?;
    let mut job = job(2, 3, "Cuda")?;
    job["spec"]["training"]["precision"] = json!("Bf16");
    job["spec"]["training"]["deterministic"] = json!(true);
    train(folder.path(), &job)?;
    steps(folder.path())
}

/// Checks that rollout and actor agree on the probabilities of tokens in every step that trains. Step 0 is
/// the evaluation of the initial model.
fn as_sampled(steps: &[Value]) -> Finding {
    let trained = steps.iter().filter(|step| step["step"].as_f64() != Some(0.0));
    let differences: Vec<Option<f64>> = trained.map(|step| step[PROBABILITY_DIFFERENCE].as_f64()).collect();
    let are_small = differences.iter().all(|one| one.is_some_and(|one| one <= PROBABILITY_TOLERANCE));
    let figures = [
        ("run", json!("rollout and actor")),
        ("dtype", json!("bf16")),
        ("steps", json!(differences.len())),
        ("probabilityDifferences", json!(differences)),
        ("tolerance", json!(PROBABILITY_TOLERANCE)),
    ];
    Finding::new(are_small && differences.len() == 3, figures)
}

/// Checks that two deterministic runs have the same metrics.
fn repeated(first: &[Value], second: &[Value]) -> Finding {
    let either = |(one, other)| match (difference(one, other), difference(other, one)) {
        (forth, back) if forth.0 >= back.0 => forth,
        (_, back) => back,
    };
    let errors: Vec<(f64, String)> = first.iter().zip(second).map(either).collect();
    let are_equal = errors.iter().all(|(error, _)| *error == 0.0);
    let figures = [
        ("run", json!("twice, with deterministic operators")),
        ("dtype", json!("bf16")),
        ("steps", json!(first.len())),
        ("errorsOfSteps", json!(errors)),
    ];
    Finding::new(are_equal && first.len() == second.len() && !first.is_empty(), figures)
}

/// Checks trainings that are resumed on the other device.
pub(super) fn across(report: &mut Report<'_>) -> Result<(), Failure> {
    let truth = trained(&[("Cpu", 3)])?;
    for (name, plan) in [
        ("begun on the GPU, ended on the CPU", [("Cuda", 1), ("Cpu", 3)]),
        ("begun on the CPU, ended on the GPU", [("Cpu", 1), ("Cuda", 3)]),
    ] {
        report(compared(name, &trained(&plan)?, &truth))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_differs_fails_a_run_and_is_shown_with_its_metric() {
        let step = |loss: f64| json!({ "actor/pg_loss": loss, "timing_s/gen": loss * 7.0 });
        let truth = [step(0.1), step(0.2)];
        assert!(matches!(compared("same", &truth, &truth).status, super::super::Status::Passed));
        let found = compared("other", &[step(0.1), step(0.25)], &truth);
        assert!(matches!(found.status, super::super::Status::Failed));
        assert_eq!(found.figures["metric"], "actor/pg_loss");
        assert_eq!(found.figures["errorsOfSteps"][0][0], 0.0);
        let null = json!({ "actor/pg_loss": null });
        for (run, truth) in [(&null, &step(0.1)), (&step(0.1), &null), (&json!({}), &step(0.1))] {
            let found = compared("no number", std::slice::from_ref(run), std::slice::from_ref(truth));
            assert!(matches!(found.status, super::super::Status::Failed), "{run} and {truth}");
        }
        let more = [json!({ "actor/pg_loss": 0.1, "val-core/reward/mean": 1.0 })];
        assert!(matches!(compared("more", &more, &truth[..1]).status, super::super::Status::Passed));
        assert!(matches!(repeated(&truth[..1], &more).status, super::super::Status::Failed));
        assert!(matches!(compared("short", &truth[..1], &truth).status, super::super::Status::Failed));
        assert!(matches!(
            repeated(&truth, &[step(0.1), step(0.2000001)]).status,
            super::super::Status::Failed
        ));
    }
}
