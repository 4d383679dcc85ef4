//! Measures the cost of a decoding step as the difference between two completion lengths of `rlt-trainer
//! generate`, and between two depths of a model.
//!
//! Copies, launches and waits are counted by the emulated devices of tests. A GPU has no such counters, so
//! this check is skipped there; `decode-speed` measures times instead.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::trainings::{job, train};
use super::{Failure, Finding, Report, Status, is_stand_in, map};

const BATCHES: [usize; 3] = [1, 16, 256];
/// Numbers of layers of the two models.
const DEPTHS: [u32; 2] = [1, 2];
/// Numbers of completion tokens of the two runs.
const LENGTHS: [usize; 2] = [4, 6];

/// Upper bounds of a step's counts.
const BOUNDS: [(&str, f64); 6] = [
    ("host_to_device", 2.0),
    ("device_to_host", 1.0),
    ("launches_per_layer", 9.0),
    ("launches_besides", 12.0),
    ("waits", 1.0),
    ("graph_launches", 1.0),
];

/// Counts of copies, launches and waits of one process, or of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    host_to_device: f64,
    device_to_host: f64,
    waits: f64,
    launches: f64,
    graph_launches: f64,
}

impl Cost {
    fn of_report(report: &Value) -> Self {
        let number = |name: &str| report[name].as_f64().unwrap_or_default();
        Self {
            host_to_device: number("host_to_device"),
            device_to_host: number("device_to_host"),
            waits: number("waits"),
            launches: number("launches"),
            graph_launches: number("graph_launches"),
        }
    }

    /// Returns the counts per step, from the additional steps of `longer`.
    fn of_step(shorter: Self, longer: Self) -> Self {
        let steps = (LENGTHS[1] - LENGTHS[0]) as f64;
        let each = |of: fn(&Self) -> f64| (of(&longer) - of(&shorter)) / steps;
        Self {
            host_to_device: each(|cost| cost.host_to_device),
            device_to_host: each(|cost| cost.device_to_host),
            waits: each(|cost| cost.waits),
            launches: each(|cost| cost.launches),
            graph_launches: each(|cost| cost.graph_launches),
        }
    }
}

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    if !is_stand_in() {
        return report(Finding::skipped(
            "a GPU does not count copies, launches and waits: devices of CPU memory do (`make gpu-check`)",
        ));
    }
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    for (folder, depth) in folders.iter().zip(DEPTHS) {
        train(folder.path(), &job(depth, 1, "Cpu")?)?;
    }
    let [shallow, deep] = &folders;
    for batch in BATCHES {
        let launched = [shallow, deep].map(|folder| step_cost(folder.path(), batch, Mode::Launched));
        let [shallow_launched, deep_launched] = launched;
        let captured = step_cost(deep.path(), batch, Mode::Captured)?;
        report(finding(batch, [shallow_launched?, deep_launched?], captured))?;
    }
    Ok(())
}

/// Makes the finding of a batch size. Launches are compared between two depths; all other counts are those of
/// a step that is one graph.
fn finding(batch: usize, [shallow, deep]: [Cost; 2], captured: Cost) -> Finding {
    let per_layer = (deep.launches - shallow.launches) / f64::from(DEPTHS[1] - DEPTHS[0]);
    let figures = map([
        ("batch", json!(batch)),
        ("layers", json!(DEPTHS[1])),
        ("host_to_device", json!(captured.host_to_device)),
        ("device_to_host", json!(captured.device_to_host)),
        ("waits", json!(captured.waits)),
        ("launches_per_layer", json!(per_layer)),
        ("launches_besides", json!(deep.launches - per_layer * f64::from(DEPTHS[1]))),
        ("graph_launches", json!(captured.graph_launches)),
    ]);
    let holds = BOUNDS.iter().all(|(name, bound)| figures[*name].as_f64().is_some_and(|cost| cost <= *bound));
    Finding { status: if holds { Status::Passed } else { Status::Failed }, figures }
}

/// Way in which the operations of a step are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Operations are launched one by one.
    Launched,
    /// All operations are launched as one graph.
    Captured,
}

/// Measures the counts of a step of a batch from two completion lengths.
fn step_cost(folder: &Path, batch: usize, mode: Mode) -> Result<Cost, Failure> {
    let [shorter, longer] = LENGTHS;
    Ok(Cost::of_step(generate(folder, batch, shorter, mode)?, generate(folder, batch, longer, mode)?))
}

fn generate(folder: &Path, batch: usize, num_tokens: usize, mode: Mode) -> Result<Cost, Failure> {
    let (prompts, report) = (folder.join("prompts.jsonl"), folder.join("counts.json"));
    let lines: String = (0..batch).map(|id| format!("{}\n", json!({ "id": id, "prompt": "1+2=" }))).collect();
    std::fs::write(&prompts, lines)?;
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["generate", "--device", "cuda", "--ignore-eos", "--model"]).arg(folder.join("run/export"));
    command.arg("--input").arg(&prompts).arg("--output").arg(folder.join("completions.jsonl"));
    command.args(["--max-new-tokens", &num_tokens.to_string(), "--max-concurrent", &batch.to_string()]);
    command.args((mode == Mode::Launched).then_some("--no-graphs"));
    command.env("RLT_STAND_IN_REPORT", &report).stdin(Stdio::null());
    let output = command.output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("generate at batch {batch} ended by {}: {words}", output.status).into());
    }
    Ok(Cost::of_report(&serde_json::from_str(&std::fs::read_to_string(&report)?)?))
}
