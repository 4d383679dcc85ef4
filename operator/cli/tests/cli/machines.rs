//! Tests of plans for a GPU: memory of device and host, times of a step, and jobs that do not fit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::{ARITHMETIC, rlctl, stderr, stdout};

/// Writes the manifest of a 7B model on the hub, and its configuration. Returns the arguments that name both.
fn large_model(folder: &Path, workers: &str) -> [String; 4] {
    let (manifest, config) = (folder.join("job.yaml"), folder.join("config.json"));
    let job = format!(
        "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: large}}\nspec:\n  \
         model: {{hub: {{repo: a/b}}}}\n  data: {{train: [a.jsonl]}}\n  algorithm: {{kind: GRPO}}\n  \
         rewards: {{functions: [{{name: right, kind: Math}}]}}\n  workers: {workers}\n"
    );
    fs::write(&manifest, job).unwrap();
    let shape = r#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": false}"#;
    fs::write(&config, shape).unwrap();
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    ["-f".into(), text(manifest), "--model-config".into(), text(config)]
}

/// Runs `rlctl plan` with [`large_model`] on a GPU.
fn planned_on(gpu: &str, workers: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let model = large_model(folder.path(), workers);
    let mut args = vec!["plan", "--gpu", gpu];
    args.extend(model.iter().map(String::as_str).chain(more.iter().copied()));
    rlctl(&args)
}

#[test]
fn the_plan_for_a_gpu_has_both_memories_and_the_times_of_a_step() {
    let output = planned_on("h100", "{count: 8, mesh: {dpShard: 8}, device: Cuda}", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    insta::assert_snapshot!(text.split("\nOn a cluster").next().unwrap());
    let output = planned_on("h100", "{count: 8, mesh: {dpShard: 8}, device: Cuda}", &["-o", "json"]);
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&plan["choices"]["precision"], &plan["fit"]["fits"]), (&"Bf16".into(), &true.into()));
    assert!(plan["speed"]["updateMfu"].as_f64() > Some(0.1), "{}", plan["speed"]);
    assert!(plan["memory"]["peakDeviceBytes"].as_u64() < plan["fit"]["availableBytes"].as_u64());
}

#[test]
fn a_job_that_cannot_fit_is_refused_with_what_would() {
    let output = planned_on("rtx-4090", "{count: 2, device: Cuda}", &[]);
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stdout(&output).contains("Memory of one rank's GPU: "), "what it needs is shown");
    let error = stderr(&output);
    assert!(error.starts_with("the job does not fit the GPU of a worker: "), "{error}");
    assert!(error.contains(" of 24.0 GiB (too large: ") && error.contains("\n  spec."), "{error}");
    assert!(error.contains("spec.workers.mesh.dpShard: "), "{error}");
}

#[test]
fn times_are_predicted_for_the_lengths_of_a_run_and_shown_next_to_measured_ones() {
    let run = tempfile::tempdir().unwrap();
    let step = |phase: u32, step: u32, gen_seconds: f64, completion: f64| {
        format!(
            "{{\"step\": {step}, \"training/phase\": {phase}, \"timing_s/gen\": {gen_seconds}, \"timing_s/ref\": 0.5, \
             \"timing_s/old_log_prob\": 0.25, \"timing_s/update_actor\": 2, \"timing_s/step\": 7, \
             \"timing_s/testing\": 1.5, \"prompt_length/mean\": 20.4, \"response_length/mean\": {completion}}}\n"
        )
    };
    // The cold start, the evaluation before the first step, and the first step, which warms up, do not count.
    let lines = [
        step(0, 1, 9.0, 9.0),
        step(1, 0, 9.0, 9.0),
        step(1, 1, 9.0, 9.0),
        step(1, 2, 3.0, 30.0),
        step(1, 3, 4.0, 34.0),
    ];
    fs::write(run.path().join("metrics.jsonl"), lines.concat()).unwrap();
    let folder = run.path().to_str().unwrap();
    let workers = "{count: 8, mesh: {dpShard: 8}, device: Cuda}";
    let text = stdout(&planned_on("h100", workers, &["--run", folder]));
    assert!(text.contains("prompts of 20 and completions of 32 tokens"), "{text}");
    let row = |name: &str| {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("Predicted on"));
        let line = lines.find(|line| line.trim_start().starts_with(name)).unwrap();
        line.trim_start()[name.len()..].split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(["rollout ", "update ", "step  "].map(row), ["3.500", "2.000", "5.500"]);
    let json = stdout(&planned_on("h100", workers, &["--run", folder, "-o", "json"]));
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(plan["measured"]["phases"]["log-probs"], 0.75);
    assert_eq!(plan["speed"]["lengths"]["completionTokens"], 32);
    // A flag overrides the lengths of the run. An impossible mean is refused.
    let text = stdout(&planned_on("h100", workers, &["--run", folder, "--completion-tokens", "8"]));
    assert!(text.contains("prompts of 20 and completions of 8 tokens"), "{text}");
    let refused = stderr(&planned_on("h100", workers, &["--prompt-tokens", "0"]));
    assert!(refused.contains("0 tokens of a prompt: expected 1 to "), "{refused}");
    fs::write(run.path().join("metrics.jsonl"), "").unwrap();
    let empty = stderr(&planned_on("h100", workers, &["--run", folder]));
    assert!(empty.contains("metrics.jsonl has no finished step"), "{empty}");
    let alone = rlctl(&["plan", "-f", ARITHMETIC, "--completion-tokens", "8"]);
    assert_eq!(alone.status.code(), Some(2), "lengths without a machine: {}", stderr(&alone));
}

#[test]
fn a_plan_for_a_gpu_has_the_rules_of_gpus_where_the_manifest_leaves_the_device_open() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = large_model(folder.path(), "{device: Auto, count: 2, mesh: {dpShard: 2, ep: 2}}");
    let mixture = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true, "max_position_embeddings": 4096, "tie_word_embeddings": true, "hidden_act": "silu"}"#;
    fs::write(folder.path().join("config.json"), mixture).unwrap();
    let planned = |more: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        rlctl(&[&["plan"], arguments.as_slice(), more].concat())
    };
    let on_gpus = planned(&["--gpu", "h100"]);
    assert_eq!(on_gpus.status.code(), Some(1));
    let error = stderr(&on_gpus);
    assert!(error.contains("ranks with GPUs do not exchange rows of experts yet"), "{error}");
    assert!(planned(&[]).status.success(), "on CPUs they do");
}

#[test]
fn a_gpu_that_is_not_known_is_answered_with_those_that_are_and_none_is_planned_for_cpus() {
    let unknown = planned_on("h101", "{device: Cuda}", &[]);
    assert_eq!(unknown.status.code(), Some(1));
    let expected =
        "GPU \"h101\" is not known: expected one of a100-40gb, a100-80gb, l40s, h100-pcie, h100-nvl, gh200, ";
    assert!(stderr(&unknown).contains(expected), "{}", stderr(&unknown));
    let error = stderr(&planned_on("h100", "{device: Cpu}", &[]));
    assert!(error.contains("spec.workers.device is Cpu; expected Cuda or Auto"), "{error}");
}
