//! The examples as they stand, run as their first lines say, from a folder of their own. Of the quickstart,
//! which `make quickstart` runs whole, the first quarter is enough for its promise.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::job::{Ended, Place};
use crate::memory;

/// Runs the example `name` as `rlctl run` in the folder of `place`, in the memory that its plan says; mean
/// reward on held-out problems before and after.
fn run(place: &Place, name: &str) -> (f64, f64) {
    let job = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let estimate = memory::estimate(&job, &place.file(""));
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("run").arg(&job).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    let folder = place.file("runs").join(name);
    memory::assert_taken(name, estimate, &folder);
    held_out_rewards(&folder)
}

/// What a run's result says of the reward on held-out problems before and after.
fn held_out_rewards(run_folder: &Path) -> (f64, f64) {
    let result = std::fs::read_to_string(run_folder.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let reward = |when: &str| result[format!("held_out_reward_{when}")].as_f64().unwrap();
    (reward("before"), reward("after"))
}

/// Share of held-out pairs whose chosen completion is ranked above the rejected one, at every evaluation.
fn held_out_accuracies(run_folder: &Path) -> Vec<f64> {
    let metrics = std::fs::read_to_string(run_folder.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["val-core/rewards/accuracies"].as_f64()).collect()
}

#[test]
fn supervised_training_teaches_and_reinforcement_corrects_what_it_taught() {
    let place = Place::new();
    let (before, taught) = run(&place, "sft");
    assert!(before < 0.05 && taught > 0.3, "{before} -> {taught}");
    for name in ["lora-grpo", "sharded", "dapo", "ppo"] {
        let (before, corrected) = run(&place, name);
        assert!(corrected > 1.5 * before, "{name}: {before} -> {corrected}");
    }
    let (before, preferred) = run(&place, "preference");
    assert!(preferred > 1.5 * before, "preference: {before} -> {preferred}");
    let accuracies = held_out_accuracies(&place.file("runs/preference"));
    assert!(accuracies.first() == Some(&0.0) && accuracies.last() > Some(&0.95), "{accuracies:?}");
    let adapter = place.file("runs/lora-grpo/export/adapter");
    assert!(adapter.join("adapter_model.safetensors").exists());
    let config = std::fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], "runs/sft/export");
}

#[test]
fn a_quarter_of_the_quickstart_doubles_the_chance_of_a_right_answer() {
    let root = rlt_tests::workspace_root();
    let manifest = std::fs::read_to_string(root.join("examples/quickstart/job.yaml")).unwrap();
    assert!(manifest.contains("  steps: 60\n"));
    let place = Place::new();
    std::fs::write(place.file("job.yaml"), manifest.replace("  steps: 60\n", "  steps: 15\n")).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    command.args(["run", "job.yaml"]).current_dir(place.file(""));
    Ended::of(command.output().unwrap()).expect(0, &[]);
    let (before, after) = held_out_rewards(&place.file("runs/quickstart"));
    assert!(before > 0.2 && after >= 2.0 * before, "{before} -> {after}");
}
