//! Conversion of metrics and settings to the names, lengths and units that MLflow accepts.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{Stage, StepMetrics};

/// Largest number of characters of a name.
const MAX_NAME: usize = 250;
/// Largest number of characters of a parameter's value: the smallest limit of MLflow's stores.
const MAX_VALUE: usize = 500;

/// Converts the finite metrics of a step to entries of `runs/log-batch`.
pub(super) fn metrics(metrics: &StepMetrics) -> Vec<Value> {
    let prefix = metrics.stage.prefix();
    let finite = metrics.values.iter().filter(|(_, value)| value.is_finite());
    let entry = |(name, value): (&String, &f64)| {
        let key = allowed(&format!("{prefix}{name}"));
        json!({ "key": key, "value": value, "timestamp": milliseconds(metrics), "step": metrics.step })
    };
    finite.map(entry).collect()
}

/// Converts a setting to a parameter.
pub(super) fn param(name: &str, value: &str) -> Value {
    json!({ "key": allowed(name), "value": value.chars().take(MAX_VALUE).collect::<String>() })
}

/// Returns the names of the parameters that a run has.
pub(super) fn params(run: &Value) -> Vec<String> {
    entries(run, "/data/params").filter_map(|param| Some(param["key"].as_str()?.to_owned())).collect()
}

/// Returns the last step of each stage of which a run has metrics, `[cold start, training]`.
pub(super) fn last_steps(run: &Value) -> [Option<u64>; 2] {
    let mut last = [None; 2];
    for metric in entries(run, "/data/metrics") {
        let Some(key) = metric["key"].as_str() else { continue };
        // 64-bit numbers may be encoded as texts.
        let step = metric["step"].as_u64().or_else(|| metric["step"].as_str()?.parse().ok()).unwrap_or(0);
        let stage = usize::from(!key.starts_with(Stage::ColdStart.prefix()));
        last[stage] = last[stage].max(Some(step));
    }
    last
}

fn entries<'a>(run: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    run.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Time at which a step ended, in milliseconds since 1970.
pub(super) fn milliseconds(metrics: &StepMetrics) -> i64 {
    (metrics.timestamp * 1e3).round() as i64
}

/// Present time, in milliseconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64)
}

/// Converts a name to what MLflow accepts: letters, digits, `_`, `-`, `.`, space and `/`, as a normalised
/// path.
fn allowed(name: &str) -> String {
    let name = name.replace('@', "_at_");
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-. ".contains(c) { c } else { '_' };
    let part = |part: &str| match part {
        "." | ".." => "_".to_owned(),
        part => part.chars().map(plain).collect(),
    };
    let parts: Vec<String> = name.split('/').filter(|part| !part.is_empty()).map(part).collect();
    parts.join("/").chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_that_mlflow_allows() {
        assert_eq!(allowed("val-core/openai/gsm8k/reward/mean@4"), "val-core/openai/gsm8k/reward/mean_at_4");
        assert_eq!(allowed("//a/../b:c"), "a/_/b_c");
        assert_eq!(allowed(&"x".repeat(300)).len(), 250);
    }

    #[test]
    fn the_last_steps_of_a_run_are_those_of_its_metrics() {
        let run = json!({ "data": { "metrics": [
            { "key": "cold_start/sft/loss", "step": 7 }, { "key": "a", "step": "3" }, { "key": "b", "step": 2 }
        ] } });
        assert_eq!(last_steps(&run), [Some(7), Some(3)]);
        assert_eq!(last_steps(&json!({})), [None, None]);
    }
}
