//! The files of a run folder, read into memory.

use std::fs;
use std::path::Path;

use rlt_storage::run_folder::WARNINGS;
use serde_json::Value;

use super::ReportError;
use super::completions::Ends;
use super::sampled::SampledSteps;
use crate::observe::tracking::{Stage, StepMetrics, for_each_completion_at_ends, for_each_step};

/// Number of bytes that are read of the log of completions, of which those of the first and the last step are
/// shown.
const MAX_COMPLETION_BYTES: u64 = 64 << 20;

/// Contents of a run folder that the report shows.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Name of the job, or of the folder if the manifest has none.
    pub(super) name: String,
    /// Resolved manifest; null if it is missing or unreadable.
    pub(super) manifest: Value,
    /// Steps in order: all steps of a short run, evenly spaced ones of a long run.
    pub(super) steps: Vec<StepMetrics>,
    /// Seconds spent in steps and evaluations, over all attempts that the logs keep.
    pub(super) seconds: f64,
    /// Completions of the first and the last step.
    pub(super) completions: Ends,
    /// Warnings of the run.
    pub(super) warnings: Vec<String>,
    /// Processor, memory and GPUs of this machine, in a few words.
    pub(super) hardware: Vec<String>,
}

/// Reads the warnings about rows that are left out, cut or repeated from `result.json`.
fn data_warnings(folder: &Path) -> Vec<String> {
    let result = text_of(&folder.join("result.json"));
    let result: Value = serde_json::from_str(&result).unwrap_or_default();
    let warnings = result["data_warnings"].as_array().into_iter().flatten();
    warnings.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Values of one metric by step.
pub(super) type Points = Vec<(f64, f64)>;

impl Run {
    pub(super) fn load(folder: &Path) -> Result<Self, ReportError> {
        let logs = |source| ReportError::Logs { folder: folder.to_path_buf(), source };
        let (mut steps, mut seconds) = (SampledSteps::default(), 0.0);
        for_each_step(&folder.join("metrics.jsonl"), |step| {
            seconds += seconds_of(step);
            steps.take(step);
        })
        .map_err(logs)?;
        let steps = steps.into_steps();
        let mut completions = Ends::default();
        let path = folder.join("completions.jsonl");
        for_each_completion_at_ends(&path, MAX_COMPLETION_BYTES, |record| completions.take(record))
            .map_err(logs)?;
        let manifest = read_manifest(&folder.join("manifest.yaml"));
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
        let name = name.or_else(|| Some(folder.file_name()?.to_string_lossy().into_owned()));
        let name = name.unwrap_or_else(|| "run".into());
        let warnings = text_of(&folder.join(WARNINGS));
        let mut warnings: Vec<String> = serde_json::from_str(&warnings).unwrap_or_default();
        warnings.extend(data_warnings(folder));
        Ok(Self { name, manifest, steps, seconds, completions, warnings, hardware: hardware() })
    }

    /// Returns the values of a metric in one stage.
    pub(super) fn points(&self, stage: Stage, metric: &str) -> Points {
        let of_stage = self.steps.iter().filter(|step| step.stage == stage);
        of_stage.filter_map(|step| Some((step.step as f64, *step.values.get(metric)?))).collect()
    }

    /// Returns the values of a metric in the training stage.
    pub(super) fn training(&self, metric: &str) -> Points {
        self.points(Stage::Training, metric)
    }

    /// Returns the names of held-out rewards, `val-core/<source>/reward/mean@<n>`, each with its data source.
    pub(super) fn held_out_rewards(&self) -> Vec<(String, String)> {
        let mut names: Vec<(String, String)> = self
            .steps
            .iter()
            .flat_map(|step| step.values.keys())
            .filter_map(|name| {
                let (source, variable) = name.strip_prefix("val-core/")?.rsplit_once("/reward/mean@")?;
                variable.parse::<u32>().ok()?;
                Some((name.clone(), source.to_owned()))
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns a text of the manifest, given its JSON pointer.
    pub(super) fn setting(&self, pointer: &str) -> Option<&str> {
        self.manifest.pointer(pointer).and_then(Value::as_str)
    }

    /// Returns the number of finished steps of a stage.
    pub(super) fn num_steps(&self, stage: Stage) -> u64 {
        self.steps.iter().filter(|step| step.stage == stage).map(|step| step.step).max().unwrap_or(0)
    }
}

/// Seconds spent in a step and its evaluation.
fn seconds_of(step: &StepMetrics) -> f64 {
    let timings = step.values.iter().filter(|(name, _)| name.starts_with("timing_s/"));
    let (whole, parts): (Vec<_>, Vec<_>) = timings.partition(|(name, _)| *name == "timing_s/step");
    let sum = |timings: Vec<(&String, &f64)>| timings.into_iter().map(|(_, seconds)| seconds).sum::<f64>();
    // Evaluations and checkpoints may be within the time of their step or after it.
    f64::max(sum(whole), sum(parts))
}

fn read_manifest(path: &Path) -> Value {
    rlt_api::read_yaml(&text_of(path)).unwrap_or_default()
}

/// Reads a small file of the run folder; empty if it is missing or no regular file, as it may be in the
/// folder of another person.
fn text_of(path: &Path) -> String {
    rlt_files::read_to_string(path, rlt_files::MAX_MODEL_JSON_BYTES).unwrap_or_default()
}

/// Describes processor, memory and GPUs by what Linux reports; unknown parts are left out.
fn hardware() -> Vec<String> {
    let field = |text: &str, name: &str| -> Option<String> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = if num_cores == 1 { "1 core".into() } else { format!("{num_cores} cores") };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.and_then(|memory| memory.split(' ').next()?.parse::<f64>().ok());
    let memory = memory.map(|kibibytes| format!("{:.0} GiB", kibibytes / f64::from(1 << 20)));
    let processor = field(&read("/proc/cpuinfo"), "model name").filter(|name| name != "unknown");
    let devices = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let mut gpus: Vec<String> = devices
        .filter_map(|gpu| field(&fs::read_to_string(gpu.path().join("information")).ok()?, "Model"))
        .collect();
    gpus.sort();
    [Some(cores), memory].into_iter().flatten().chain(gpus).chain(processor).collect()
}
