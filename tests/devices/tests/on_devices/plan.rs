//! `rlctl plan`'s memory of a GPU, compared with the peak that a run reports for each phase. Both count
//! tensors only, without free blocks of the allocator and the context of a process.

use std::fs;
use std::process::Command;

use rlt_tests::fresh_binary;
use serde_json::{Value, json};

use crate::run::{Run, manifest, merge};

/// How far the plan may be from a phase's peak, of the peak.
const TOLERANCE: f64 = 0.1;
/// Bytes of the GPU that is planned for, and of the stand-in.
const GPU: (&str, u64) = ("h100", 80 << 30);
/// Each phase of the plan, and by which names a step reports it.
const PHASES: [(&str, &[&str]); 6] = [
    ("Loading", &["setup"]),
    ("WeightSync", &["update_weights"]),
    ("Rollout", &["gen"]),
    ("Logprob", &["old_log_prob", "ref"]),
    ("Update", &["update_actor"]),
    ("Optimizer", &["optimizer"]),
];

/// A job whose tensors outweigh what is rounded, and whose passes are full: every prompt has the longest
/// length, nothing ends a completion early, and an update has two micro-batches, so that the second adds to
/// the gradients of the first. Two passes over a batch need the actor's log-probs before them.
fn large(changes: &Value) -> Value {
    let characters: String = ('0'..='9').chain("+=".chars()).chain(('\u{4e00}'..).take(2000)).collect();
    let mut spec = json!({
        "model": {
            "architecture": {
                "hiddenSize": 256, "intermediateSize": 704, "numLayers": 4, "numHeads": 4,
                "maxPositionEmbeddings": 64
            },
            "tokenizer": { "characters": characters }
        },
        "data": { "task": { "maxOperand": 999_999, "zeroPadded": true }, "maxPromptTokens": 15 },
        "rewards": { "functions": [{ "name": "near", "kind": "MatchingCharacters" }] },
        "rollout": { "samplesPerPrompt": 8, "maxCompletionTokens": 16, "ignoreEos": true },
        "training": {
            "steps": 1, "promptsPerStep": 4, "epochsPerBatch": 2, "maxTokensPerMicroBatch": 270,
            "maxLogprobTokens": 540, "precision": "Bf16", "optimizer": { "learningRate": 1e-4 }
        },
        "checkpoint": { "everySteps": 0 }
    });
    merge(&mut spec, changes);
    spec
}

/// The bytes that each phase is planned to take of a GPU's memory for tensors.
fn planned(num_devices: usize, changes: &Value) -> Vec<(String, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    fs::write(&path, manifest(num_devices, changes).to_string()).unwrap();
    let mut command = Command::new(fresh_binary("rlctl"));
    command.args(["plan", "--output", "json", "--gpu", GPU.0, "--file"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tensors = |phase: &Value| {
        let terms = phase["terms"].as_array().unwrap().iter();
        let of_device = terms.filter(|term| term["place"] == "Device" && term["name"] != "CUDA context");
        of_device.map(|term| term["bytes"].as_f64().unwrap()).sum()
    };
    let phases = plan["memory"]["phases"].as_array().unwrap().iter();
    phases.map(|phase| (phase["phase"].as_str().unwrap().to_owned(), tensors(phase))).collect()
}

/// The most bytes that tensors took in any step of these phases.
fn peak(run: &Run, phases: &[&str]) -> f64 {
    let names = phases.iter().map(|phase| format!("perf/max_memory_allocated_gb/{phase}"));
    let steps = run.steps();
    let peaks = names.flat_map(|name| steps.iter().filter_map(move |step| step[&name].as_f64()));
    peaks.fold(0.0, f64::max) * f64::from(1 << 30)
}

/// Fails unless each phase of a run takes what was planned.
#[track_caller]
fn assert_as_planned(name: &str, num_devices: usize, changes: &Value) {
    let job = large(changes);
    let planned = planned(num_devices, &job);
    let run = Run::with(num_devices, &job, &[("RLT_STAND_IN_MEMORY", &GPU.1.to_string())]);
    let mut far = Vec::new();
    for (phase, reported) in PHASES {
        let (_, planned) = planned.iter().find(|(name, _)| name == phase).unwrap();
        let measured = peak(&run, reported);
        if (planned / measured - 1.0).abs() > TOLERANCE {
            far.push(format!("{name}, {phase}: planned {planned:.0} bytes, measured {measured:.0}"));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn full_fine_tuning_within_its_share_of_a_gpu_takes_what_was_planned_in_every_phase() {
    // Room for the packed weights, 7.1 MiB, and about half of what all sequences would fill.
    let share = 9.5 / (GPU.1 >> 20) as f64;
    let changes = json!({ "rollout": { "memoryFraction": share } });
    let rollout = |changes: &Value| {
        let phases = planned(1, &large(changes));
        phases.into_iter().find(|(name, _)| name == "Rollout").unwrap().1
    };
    assert!(rollout(&changes) < 0.98 * rollout(&json!({})), "the share bounds the cache");
    assert_as_planned("full fine-tuning", 1, &changes);
}

#[test]
fn an_adapter_takes_what_was_planned_in_every_phase() {
    assert_as_planned("an adapter", 1, &json!({ "model": { "lora": { "rank": 16 } } }));
}

#[test]
fn adapters_beside_their_bases_take_what_was_planned_in_every_phase() {
    let lora = json!({ "rank": 16, "merge": false });
    assert_as_planned("beside a dense base", 1, &json!({ "model": { "lora": lora } }));
    let quantized = json!({ "model": { "lora": lora, "quantization": { "doubleQuantization": true } } });
    assert_as_planned("beside codes", 1, &quantized);
}

#[test]
fn offloaded_training_takes_the_planned_memory_in_every_phase() {
    let all = json!({ "parameters": true, "optimizer": true, "activations": true });
    let changes = json!({ "training": { "activationCheckpointing": true, "offload": all } });
    assert_as_planned("offloaded", 1, &changes);
}

#[test]
fn a_mixture_of_experts_takes_what_was_planned_in_every_phase() {
    let architecture = json!({
        "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 }, "intermediateSize": 128,
        "numLayers": 2, "tieWordEmbeddings": false
    });
    assert_as_planned("a mixture", 1, &json!({ "model": { "architecture": architecture } }));
}

#[test]
fn two_ranks_that_share_a_model_take_what_was_planned_in_every_phase() {
    // Each has half of the groups, and two micro-batches again.
    let changes = json!({
        "training": { "maxTokensPerMicroBatch": 135 }, "workers": { "count": 2, "mesh": { "dpShard": 2 } }
    });
    assert_as_planned("two ranks", 2, &changes);
}
