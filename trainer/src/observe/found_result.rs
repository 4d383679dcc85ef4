//! Reports the result of a run that an earlier process has completed. A job that is created again on the
//! storage of a finished job trains nothing; its status shows the progress of the finished one.

use std::error::Error;

use rlt_storage::checkpoint::CheckpointStore;
use rlt_storage::run_folder::RunFolder;

use crate::observe::status_channel::StatusChannel;
use crate::observe::tracking::{Stage, StepMetrics, TrackingError, for_each_step};

/// Metric that a step with an evaluation has.
const HELD_OUT_REWARD: &str = "val-core/reward/mean";

/// Reports the result in `folder`, as far as its files can be read. Without an operator nothing is read.
pub(crate) fn report(folder: &RunFolder, channel: &StatusChannel) {
    if !channel.has_operator() {
        return;
    }
    let last_steps = last_steps(folder).unwrap_or_else(|error| {
        let error: &dyn Error = &error;
        tracing::warn!(error, "the metrics of the earlier result are not reported");
        Vec::new()
    });
    channel.report_result(num_steps(folder), &last_steps);
    match CheckpointStore::follow(&folder.checkpoints()).committed() {
        Ok(committed) => channel.checkpoints(&committed),
        Err(error) => {
            let error: &dyn Error = &error;
            tracing::warn!(error, "the checkpoints of the earlier result are not reported");
        }
    }
}

/// Returns the number of finished steps in `result.json`.
fn num_steps(folder: &RunFolder) -> u64 {
    let result = rlt_files::read_to_string(&folder.result(), rlt_files::MAX_MODEL_JSON_BYTES);
    let result = result.unwrap_or_default();
    let result: serde_json::Value = serde_json::from_str(&result).unwrap_or_default();
    result["step"].as_u64().unwrap_or(0)
}

/// Returns the last training step with an evaluation, and the last training step.
fn last_steps(folder: &RunFolder) -> Result<Vec<StepMetrics>, TrackingError> {
    let (mut evaluated, mut last) = (None, None);
    for_each_step(&folder.root().join("metrics.jsonl"), |metrics| {
        if metrics.stage != Stage::Training {
            return;
        }
        if metrics.values.contains_key(HELD_OUT_REWARD) {
            evaluated = Some(metrics.clone());
        }
        last = Some(metrics.clone());
    })?;
    Ok(evaluated.into_iter().chain(last).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_evaluation_and_the_last_step_are_those_of_the_training() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path(), false).unwrap();
        assert_eq!((num_steps(&folder), last_steps(&folder).unwrap().len()), (0, 0));
        let step = |stage: Stage, step: u64, name: &str| {
            let metrics = StepMetrics::new(stage, step, [(name.to_owned(), 0.5)].into_iter().collect());
            serde_json::to_string(&metrics).unwrap() + "\n"
        };
        let lines = [
            step(Stage::ColdStart, 9, HELD_OUT_REWARD),
            step(Stage::Training, 0, HELD_OUT_REWARD),
            step(Stage::Training, 1, "actor/lr"),
            step(Stage::Training, 2, HELD_OUT_REWARD),
            step(Stage::Training, 3, "actor/lr"),
        ];
        std::fs::write(dir.path().join("metrics.jsonl"), lines.concat()).unwrap();
        std::fs::write(folder.result(), r#"{"outcome": "complete", "step": 3, "num_steps": 3}"#).unwrap();
        let steps: Vec<u64> = last_steps(&folder).unwrap().iter().map(|metrics| metrics.step).collect();
        assert_eq!((num_steps(&folder), steps), (3, vec![2, 3]));
    }
}
