//! `rlctl plan`'s memory of a GPU, compared with the peaks that a run reports: allocated bytes of each phase,
//! and reserved bytes of the run, which include the free blocks of libtorch's allocator. Neither counts the
//! context of a process.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use rlt_tests::fresh_binary;
use serde_json::{Value, json};

use crate::run::{Run, manifest, merge};

/// Maximum relative difference of the plan from the peak of a phase.
const TOLERANCE: f64 = 0.1;
/// GPU of the plan, and its number of bytes, which the emulated device has too.
const GPU: (&str, u64) = ("h100", 80 << 30);
/// Phases of the plan, each with the names by which a step reports it.
const PHASES: [(&str, &[&str]); 6] = [
    ("Loading", &["setup"]),
    ("WeightSync", &["update_weights"]),
    ("Rollout", &["gen"]),
    ("Logprob", &["old_log_prob", "ref"]),
    ("Update", &["update_actor"]),
    ("Optimizer", &["optimizer"]),
];

/// Returns a job whose tensors are large compared with what is rounded, and whose passes are full. Every
/// prompt has the maximum length, and nothing ends a completion early. An update has two micro-batches, so
/// that the second adds to the gradients of the first. Two passes over a batch need the actor's log-probs
/// before them.
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

/// Term of the blocks that libtorch's allocator keeps for a stream that no longer uses them.
const CACHED: &str = "cached blocks";

/// Number of bytes of a GPU's memory that the tensors of a job are planned to take.
struct Planned {
    /// Phases, each with the sum of its terms, and with its cached blocks.
    phases: Vec<(String, f64, f64)>,
    /// Terms, each with its maximum in any phase.
    terms: BTreeMap<String, f64>,
}

impl Planned {
    fn new(num_devices: usize, changes: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        fs::write(&path, manifest(num_devices, changes).to_string()).unwrap();
        let mut command = Command::new(fresh_binary("rlctl"));
        command.args(["plan", "--output", "json", "--gpu", GPU.0, "--file"]).arg(&path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut planned = Self { phases: Vec::new(), terms: BTreeMap::new() };
        for phase in plan["memory"]["phases"].as_array().unwrap() {
            let (mut sum, mut cached) = (0.0, 0.0);
            for term in phase["terms"].as_array().unwrap() {
                if term["place"] != "Device" || term["name"] == "CUDA context" {
                    continue;
                }
                let bytes = term["bytes"].as_f64().unwrap();
                if term["name"] == CACHED {
                    cached += bytes;
                    continue;
                }
                sum += bytes;
                let most = planned.terms.entry(term["name"].as_str().unwrap().to_owned()).or_default();
                *most = most.max(bytes);
            }
            planned.phases.push((phase["phase"].as_str().unwrap().to_owned(), sum, cached));
        }
        planned
    }

    /// Returns the planned bytes of a phase, allocated and cached.
    fn both(&self, phase: &str) -> (f64, f64) {
        let found = self.phases.iter().find(|(name, ..)| name == phase);
        found.map(|(_, allocated, cached)| (*allocated, *cached)).unwrap()
    }

    /// Returns the planned bytes of a phase without cached blocks.
    fn of(&self, phase: &str) -> f64 {
        self.both(phase).0
    }

    /// Returns the maximum number of bytes that the allocator may reserve.
    ///
    /// The emulated allocator makes a segment of the request's size, rounded to 512 bytes, if no free block
    /// of the same stream is large enough, and keeps the segment until the cache is emptied. Within a term
    /// the same sizes recur in every layer and micro-batch, so its free blocks serve its next requests. In
    /// the worst case they serve no other term: the terms of all phases are then reserved side by side, each
    /// at its most. Terms are as exact as phases, within [`TOLERANCE`].
    fn most_reserved(&self) -> f64 {
        (1.0 + TOLERANCE) * self.terms.values().sum::<f64>()
    }
}

/// Returns the largest value of `metric`, in bytes, that any step reports for these phases.
fn peak(run: &Run, metric: &str, phases: &[&str]) -> f64 {
    let names = phases.iter().map(|phase| format!("{metric}/{phase}"));
    let steps = run.steps();
    let peaks = names.flat_map(|name| steps.iter().filter_map(move |step| step[&name].as_f64()));
    peaks.fold(0.0, f64::max) * f64::from(1 << 30)
}

/// Checks that each phase of a run allocates what was planned, and that the run reserves no more than the sum
/// of all terms of the plan.
#[track_caller]
fn assert_as_planned(name: &str, num_devices: usize, changes: &Value) {
    let job = large(changes);
    let planned = Planned::new(num_devices, &job);
    let run = Run::with(num_devices, &job, &[("RLT_STAND_IN_MEMORY", &GPU.1.to_string())]);
    let mut far = Vec::new();
    for (phase, reported) in PHASES {
        let planned = planned.of(phase);
        let measured = peak(&run, "perf/max_memory_allocated_gb", reported);
        if (planned / measured - 1.0).abs() > TOLERANCE {
            far.push(format!("{name}, {phase}: planned {planned:.0} bytes, measured {measured:.0}"));
        }
    }
    let reported: Vec<&str> = PHASES.iter().flat_map(|(_, reported)| reported.iter().copied()).collect();
    let reserved = peak(&run, "perf/max_memory_reserved_gb", &reported);
    let allocated = peak(&run, "perf/max_memory_allocated_gb", &reported);
    let most = planned.most_reserved();
    println!("{name}: allocated {allocated:.0} bytes, reserved {reserved:.0}, at most {most:.0} expected");
    assert!(
        reserved >= allocated && allocated > 0.0,
        "{name}: {reserved:.0} reserved, {allocated:.0} allocated"
    );
    // The cache was emptied at the start of the weight sync, so the rollout can reuse only blocks that the
    // sync has freed.
    let (planned, cached) = planned.both("Rollout");
    let of_rollout = peak(&run, "perf/max_memory_reserved_gb", &["gen"]);
    println!(
        "{name}: the rollout reserves {of_rollout:.0} bytes, planned {planned:.0} and {cached:.0} cached"
    );
    if of_rollout > (1.0 + TOLERANCE) * (planned + cached) {
        far.push(format!("{name}: the rollout reserves {of_rollout:.0}, planned {planned:.0} + {cached:.0}"));
    }
    if reserved > most {
        far.push(format!("{name}: reserved {reserved:.0} bytes, at most {most:.0} expected"));
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn full_fine_tuning_within_its_share_of_a_gpu_takes_what_was_planned_in_every_phase() {
    // The share leaves space for the packed weights, 7.1 MiB, and for about half of what all sequences would
    // fill.
    let share = 9.5 / (GPU.1 >> 20) as f64;
    let changes = json!({ "rollout": { "memoryFraction": share } });
    let rollout = |changes: &Value| Planned::new(1, &large(changes)).of("Rollout");
    assert!(rollout(&changes) < 0.98 * rollout(&json!({})), "the share bounds the cache");
    assert_as_planned("full fine-tuning", 1, &changes);
}

#[test]
fn an_adapter_takes_what_was_planned_in_every_phase() {
    assert_as_planned("an adapter", 1, &json!({ "model": { "lora": { "rank": 16 } } }));
}

#[test]
fn unmerged_adapters_take_what_was_planned_in_every_phase() {
    let lora = json!({ "rank": 16, "merge": false });
    assert_as_planned("an unmerged adapter of a dense base", 1, &json!({ "model": { "lora": lora } }));
    let quantized = json!({ "model": { "lora": lora, "quantization": { "doubleQuantization": true } } });
    assert_as_planned("an unmerged adapter of a quantized base", 1, &quantized);
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
    // Each device has half of the groups, which are again two micro-batches.
    let changes = json!({
        "training": { "maxTokensPerMicroBatch": 135 }, "workers": { "count": 2, "mesh": { "dpShard": 2 } }
    });
    assert_as_planned("two ranks", 2, &changes);
}
