//! Runs the examples unchanged, as their first lines say, each from a separate folder. `make quickstart` runs
//! the full quickstart; its first quarter is enough here to check what it promises.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::job::{Ended, Place};
use crate::memory;

/// Runs the example `name` by `rlctl run` in the folder of `place`, and checks the memory of its plan.
/// Returns the mean reward on held-out problems before and after.
fn run(place: &Place, name: &str) -> (f64, f64) {
    held_out_rewards(&run_alone(place, name))
}

/// Runs an example without rewards, and returns its run folder.
fn run_alone(place: &Place, name: &str) -> PathBuf {
    let job = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let estimate = memory::estimate(&job, &place.file(""));
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("run").arg(&job).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    let folder = place.file("runs").join(name);
    memory::assert_taken(name, estimate, &folder);
    folder
}

/// Returns the held-out rewards before and after a run, from its result.
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
    let place = Place::on_disk();
    let (before, taught) = run(&place, "sft");
    assert!(before < 0.05 && taught > 0.3, "{before} -> {taught}");
    for name in ["lora-grpo", "qlora", "sharded", "dapo", "ppo"] {
        let (before, corrected) = run(&place, name);
        assert!(corrected > 1.5 * before, "{name}: {before} -> {corrected}");
    }
    let (before, preferred) = run(&place, "preference");
    assert!(preferred > 1.5 * before, "preference: {before} -> {preferred}");
    let accuracies = held_out_accuracies(&place.file("runs/preference"));
    assert!(accuracies.first() == Some(&0.0) && accuracies.last() > Some(&0.95), "{accuracies:?}");
    a_trained_reward_model_corrects_a_policy(&place);
    let adapter = place.file("runs/lora-grpo/export/adapter");
    assert!(adapter.join("adapter_model.safetensors").exists());
    let config = std::fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], "runs/sft/export");
}

/// Trains a reward model on preferences, and then a better policy with it. The folder of `place` has the
/// model of the supervised example.
fn a_trained_reward_model_corrects_a_policy(place: &Place) {
    run_alone(place, "reward-model");
    let accuracies = held_out_accuracies(&place.file("runs/reward-model"));
    assert!(accuracies[0] < 0.9 && accuracies.last() > Some(&0.95), "{accuracies:?}");
    let (before, after) = run(place, "rlhf");
    assert!(after > before + 0.5, "what the reward model says: {before} -> {after}");
    let metrics = std::fs::read_to_string(place.file("runs/rlhf/metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let right: Vec<f64> = lines.filter_map(|line| line["reward/correct/mean"].as_f64()).collect();
    let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len() as f64;
    assert!(mean(&right[12..]) > 1.4 * mean(&right[..3]), "share of right answers: {right:?}");
}

/// Runs a file of the example of process rewards in the folder of `place`, and returns its metrics.
fn run_on_steps(place: &Place, file: &str, name: &str) -> Vec<Value> {
    let job = rlt_tests::workspace_root().join("examples/process-reward").join(file);
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("run").arg(&job).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    let metrics = std::fs::read_to_string(place.file("runs").join(name).join("metrics.jsonl")).unwrap();
    metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_process_reward_model_teaches_a_policy_right_answers() {
    let place = Place::on_disk();
    let rows = rlt_tests::workspace_root().join("examples/process-reward/rows.sh");
    let mut command = Command::new("sh");
    Ended::of(command.arg(rows).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    run_on_steps(&place, "sft.yaml", "process-reward-sft");
    let judged = run_on_steps(&place, "job.yaml", "process-reward");
    let accuracy = |line: &Value, of: &str| line[format!("val-core/steps/accuracy{of}")].as_f64();
    let (first, last) = (&judged[0], &judged[240]);
    assert!(accuracy(first, "") < Some(0.6) && accuracy(last, "") > Some(0.9), "{first} {last}");
    assert!(accuracy(last, "_of_right") > Some(0.9) && accuracy(last, "_of_wrong") > Some(0.8), "{last}");
    let taught = run_on_steps(&place, "grpo.yaml", "process-reward-grpo");
    let right: Vec<f64> = taught.iter().filter_map(|line| line["reward/correct/mean"].as_f64()).collect();
    let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len() as f64;
    assert!(mean(&right[..3]) < 0.45 && mean(&right[57..]) > 0.75, "share of right answers: {right:?}");
}

#[test]
fn a_vision_language_model_learns_to_count_generated_pictures() {
    let place = Place::on_disk();
    let (before, after) = run(&place, "vision");
    // One of nine numbers is right by chance, and 40 % of the demonstrations are right.
    assert!(before > 0.15 && after > 1.8 * before, "{before} -> {after}");
    // The export is a model that reads images as before: a second run starts where the first one ended.
    let example = rlt_tests::workspace_root().join("examples/vision/job.yaml");
    let example = std::fs::read_to_string(example).unwrap();
    let (_, behind_model) = example.split_once("\n  data:\n").unwrap();
    let head = "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {name: more}\n\
                spec:\n  model: {path: runs/vision/export}\n  data:\n";
    let cold_start = "    coldStart:\n      steps: 150\n      batchSize: 128\n      learningRate: 2.0e-3\n";
    assert!(behind_model.contains(cold_start) && behind_model.contains("    steps: 60\n"));
    let more = behind_model.replace(cold_start, "").replace("    steps: 60\n", "    steps: 1\n");
    let more = more.replace("warmupSteps: 5", "warmupSteps: 0");
    std::fs::write(place.file("more.yaml"), format!("{head}{more}")).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.args(["run", "more.yaml"]).current_dir(place.file("")).output().unwrap())
        .expect(0, &[]);
    let (again, _) = held_out_rewards(&place.file("runs/more"));
    assert!((again - after).abs() < 0.1, "{after} of the first run, {again} of its export");
}

/// Runs the first quarter of the example `name`. Returns the mean reward on held-out problems before and
/// after.
fn run_a_quarter(name: &str) -> (f64, f64) {
    let example = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let manifest = std::fs::read_to_string(example).unwrap();
    assert!(manifest.contains("  steps: 60\n"));
    let place = Place::on_disk();
    std::fs::write(place.file("job.yaml"), manifest.replace("  steps: 60\n", "  steps: 15\n")).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    command.args(["run", "job.yaml"]).current_dir(place.file(""));
    Ended::of(command.output().unwrap()).expect(0, &[]);
    held_out_rewards(&place.file("runs").join(name))
}

#[test]
fn a_quarter_of_the_quickstart_doubles_the_chance_of_a_right_answer() {
    let (before, after) = run_a_quarter("quickstart");
    assert!(before > 0.2 && after >= 2.0 * before, "{before} -> {after}");
}

#[test]
fn a_mixture_of_experts_learns_the_quickstart_s_task() {
    let (before, after) = run_a_quarter("experts");
    assert!(before > 0.1 && after >= 1.5 * before, "{before} -> {after}");
}
