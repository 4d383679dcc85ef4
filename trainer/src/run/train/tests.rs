//! Full runs in this process: of every choice of a manifest, and of cases that no manifest can request, such
//! as reward functions that panic and how often weights are packed.

mod every_choice;
mod wiring;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rlt_core::reward::{RewardError, RewardFunction, Sample};
use rlt_parallel::Ranks;
use rlt_storage::run_folder::RunFolder;

use super::*;
use crate::observe::stop::StopRequest;
use crate::roles::reward::{PoolOptions, RewardFunctions, RewardPool};

const JOB: &str = r#"
apiVersion: rltraining.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: panics}
spec:
  model:
    architecture: {family: Llama, hiddenSize: 32, intermediateSize: 64, numLayers: 1, numHeads: 2}
    tokenizer: {characters: "0123456789+="}
  data: {task: {kind: Arithmetic, operators: ["+"], maxOperand: 9, numTrain: 16, numHeldOut: 0}, maxPromptTokens: 8}
  rewards: {functions: [{name: replaced, kind: Exact}]}
  algorithm: {kind: GRPO}
  rollout: {samplesPerPrompt: 4, maxCompletionTokens: 4}
  training: {steps: 3, promptsPerStep: 2}
  workers: {device: Cpu, threads: 1}
"#;

/// Panics on completions that hold a 1, or on all of them.
struct Panics {
    always: bool,
}

impl RewardFunction for Panics {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        assert!(!self.always && !sample.completion.contains('1'), "a one is in it");
        Ok(sample.completion.len() as f64)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 4.0)
    }
}

fn set_up(job: &str, root: &Path) -> (Run, Roles, Pipeline) {
    let job = rlt_api::validate(job).unwrap();
    let folder = RunFolder::open(root, false).unwrap();
    crate::run::setup::setup(job, folder, StopRequest::never(), Ranks::alone(), crate::recipes::of).unwrap()
}

fn run(always: bool, root: &Path) -> Result<Outcome, TrainError> {
    let (mut run, mut roles, mut data) = set_up(JOB, root);
    let functions = RewardFunctions::default().with("panics", 1.0, Arc::new(Panics { always }));
    let options = PoolOptions { num_workers: 2, timeout: Duration::from_secs(10) };
    roles.rewards.pool = RewardPool::new(functions, options);
    train(&mut run, &mut roles, &mut data)
}

#[test]
fn a_panicking_reward_function_masks_its_samples_and_the_run_continues() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("run");
    assert_eq!(run(false, &root).unwrap(), Outcome::Complete);
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let metrics = read("metrics.jsonl");
    let steps: Vec<serde_json::Value> =
        metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.last().unwrap()["step"], 3);
    assert!(steps.iter().any(|step| step["reward/error_ratio"].as_f64() > Some(0.0)), "{metrics}");
    assert!(steps.iter().any(|step| step["actor/grad_norm"].as_f64() > Some(0.0)), "{metrics}");
    let completions = read("completions.jsonl");
    assert!(completions.contains("panics: panicked: a one is in it"), "{completions}");
}

#[test]
fn a_reward_that_always_panics_ends_the_run_with_its_words() {
    let root = tempfile::tempdir().unwrap();
    let error = run(true, &root.path().join("run")).unwrap_err();
    assert!(
        matches!(&error, TrainError::Step(StepError::NoRewards { example }) if example.contains("a one is in it")),
        "{error}"
    );
}

#[test]
fn an_evaluation_and_the_step_after_it_sample_from_weights_that_are_packed_once() {
    let root = tempfile::tempdir().unwrap();
    let num_syncs = |name: &str, evaluate_every: u64| {
        let evaluated = JOB.replace("numHeldOut: 0", "numHeldOut: 2").replace(
            "steps: 3",
            &format!("steps: 3, evaluateBefore: {}, evaluateEvery: {evaluate_every}", evaluate_every > 0),
        );
        let (mut run, mut roles, mut data) = set_up(&evaluated, &root.path().join(name));
        assert_eq!(train(&mut run, &mut roles, &mut data).unwrap(), Outcome::Complete);
        roles.rollout.num_weight_syncs()
    };
    // An evaluation always follows the last step, under weights that no step has sampled from.
    assert_eq!(num_syncs("rarely", 0), 3 + 1);
    assert_eq!(num_syncs("always", 1), 3 + 1);
}

/// The job of the first case samples at a temperature of 1, which divides nothing.
#[test]
fn a_cold_start_learns_the_same_whatever_the_temperature_of_the_rollout() {
    let root = tempfile::tempdir().unwrap();
    let losses = |temperature: f64| -> Vec<serde_json::Value> {
        let job = JOB
            .replace("{kind: GRPO}", "{kind: GRPO, coldStart: {steps: 3, batchSize: 4}}")
            .replace("steps: 3, promptsPerStep", "steps: 1, promptsPerStep")
            .replace("samplesPerPrompt", &format!("temperature: {temperature}, samplesPerPrompt"));
        let root = root.path().join(temperature.to_string());
        let (mut run, mut roles, mut data) = set_up(&job, &root);
        assert_eq!(train(&mut run, &mut roles, &mut data).unwrap(), Outcome::Complete);
        let metrics = std::fs::read_to_string(root.join("metrics.jsonl")).unwrap();
        let lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let cold = lines.filter(|line| line["training/phase"] == 0);
        cold.map(|line| serde_json::json!([line["sft/loss"], line["actor/entropy"], line["actor/grad_norm"]]))
            .collect()
    };
    let at_one = losses(1.0);
    assert_eq!(at_one.len(), 3);
    assert!(at_one[0][0].as_f64() > Some(0.0), "{at_one:?}");
    assert_eq!(losses(0.5), at_one);
}
