//! Measurements of a run, for planning and for comparison with the prediction: mean lengths of its sequences
//! and durations of its phases, from the `metrics.jsonl` of its folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value};

/// Phases of a plan, each with the metrics that add up to it.
const PHASES: [(&str, &[&str]); 5] = [
    ("weight sync", &["timing_s/update_weights"]),
    ("rollout", &["timing_s/gen"]),
    ("log-probs", &["timing_s/old_log_prob", "timing_s/ref"]),
    ("critic", &["timing_s/values", "timing_s/update_critic"]),
    ("update", &["timing_s/update_actor"]),
];

/// Medians over the steps of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeasuredRun {
    /// Number of steps that count.
    pub(crate) num_steps: usize,
    /// Mean number of tokens of a prompt; `None` if the run does not report it.
    pub(crate) prompt_tokens: Option<u32>,
    /// Mean number of tokens of a completion; `None` if the run does not report it.
    pub(crate) completion_tokens: Option<u32>,
    /// Seconds per phase of the plan.
    pub(crate) phases: BTreeMap<&'static str, f64>,
    /// Seconds per step, with rewards and data, without evaluations and checkpoints.
    pub(crate) step_seconds: f64,
}

impl MeasuredRun {
    /// Reads the measurements from a run folder. The first step, which warms up, counts only if it is the
    /// only one.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join("metrics.jsonl");
        let text = rlt_files::read_to_string(&file, rlt_files::MAX_LOG_BYTES);
        let text = text.with_context(|| format!("read the run of --run: {}", file.display()))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let steps: Result<Vec<Map<String, Value>>, _> = lines.map(serde_json::from_str).collect();
        let steps = steps.with_context(|| format!("read the run of --run: a line of {}", file.display()))?;
        let steps: Vec<_> = steps.iter().filter(|step| is_training(step)).collect();
        anyhow::ensure!(!steps.is_empty(), "read the run of --run: {} has no finished step", file.display());
        Ok(Self::of(if steps.len() > 1 { &steps[1..] } else { &steps }))
    }

    fn of(steps: &[&Map<String, Value>]) -> Self {
        let of_metric =
            |name: &str| median(steps.iter().filter_map(|step| step.get(name)?.as_f64()).collect());
        let tokens = |name: &str| of_metric(name).map(|tokens| tokens.round().max(1.0) as u32);
        let seconds = |names: &[&str]| {
            let known: Vec<f64> = names.iter().filter_map(|name| of_metric(name)).collect();
            (!known.is_empty()).then(|| known.iter().sum())
        };
        let phases: BTreeMap<_, f64> =
            PHASES.iter().filter_map(|(phase, names)| Some((*phase, seconds(names)?))).collect();
        // The duration of a step includes its evaluation and checkpoint, which are subtracted.
        let without = |step: &&Map<String, Value>| {
            let of = |name: &str| step.get(name).and_then(Value::as_f64);
            let others = ["timing_s/testing", "timing_s/save_checkpoint"];
            Some(of("timing_s/step")? - others.iter().filter_map(|name| of(name)).sum::<f64>())
        };
        let step_seconds = median(steps.iter().filter_map(without).collect());
        Self {
            num_steps: steps.len(),
            prompt_tokens: tokens("prompt_length/mean"),
            completion_tokens: tokens("response_length/mean"),
            step_seconds: step_seconds.unwrap_or_else(|| phases.values().sum()),
            phases,
        }
    }
}

/// Whether a line is that of a training step, not of the cold start or of the evaluation before the first
/// step.
fn is_training(step: &Map<String, Value>) -> bool {
    let of = |name: &str| step.get(name).and_then(Value::as_f64);
    of("training/phase") == Some(1.0) && of("step") > Some(0.0)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}
