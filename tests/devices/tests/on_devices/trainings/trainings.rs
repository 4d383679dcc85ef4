//! Trainings on devices give the CPU's results, on any number of devices, whether interrupted or not, whether
//! offloaded or not, and with any split into micro-batches.

use rlt_api::ExitCode;
use serde_json::{Value, json};

use crate::run::{Run, difference, merge, refused};

/// Devices compute with the CPU's own operators. But attention, the head and the optimizer are composed of
/// other operators there than the CPU's fused kernels. Results differ by a few roundings of fp32, which the
/// optimizer amplifies because it divides by small gradients.
const TOLERANCE: f64 = 1e-5;

fn merged(parts: &[Value]) -> Value {
    let mut all = json!({});
    parts.iter().for_each(|part| merge(&mut all, part));
    all
}

/// Changes for a job whose batch is distributed to `count` ranks.
fn on_ranks(count: u32) -> Value {
    json!({
        "training": { "promptsPerStep": 3, "optimizer": { "learningRate": 0.001 } }, "workers": { "count": count }
    })
}

#[track_caller]
fn assert_same(one: &Run, other: &Run, tolerance: f64, what: &str) {
    let difference = difference(one, other);
    assert!(difference <= tolerance, "{what} differs by {difference}");
}

#[test]
fn a_training_on_a_device_gives_the_cpus_numbers() {
    let changes = json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } } });
    let (cpu, device) = (Run::new(0, &changes), Run::new(1, &changes));
    assert_same(&cpu, &device, TOLERANCE, "the device");
    let counts: Vec<_> = device.counts().into_iter().filter(|counts| counts.launches > 0).collect();
    assert_eq!(counts.len(), 1, "one process has used the device");
    assert!(counts[0].host_to_device > 0 && counts[0].peak_bytes[0] > 0, "{:?}", counts[0]);
}

#[test]
fn every_kind_of_training_on_a_device_gives_the_cpus_numbers() {
    for changes in [
        json!({ "algorithm": { "kind": "SFT" }, "rewards": { "functions": [] } }),
        json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } }),
        // Dropout masks drawn by the kernel equal those of the host bit for bit.
        json!({ "model": { "lora": { "rank": 4, "alpha": 8, "dropout": 0.2 } } }),
        json!({ "algorithm": { "kind": "PPO" }, "training": { "promptsPerUpdate": 1 } }),
        json!({ "model": { "architecture": { "numHeads": 4, "numKvHeads": 2 } } }),
    ] {
        // Smaller steps amplify rounding errors less.
        let slow = json!({ "training": { "optimizer": { "learningRate": 0.001 } } });
        let job = merged(&[slow, changes.clone()]);
        assert_same(&Run::new(0, &job), &Run::new(1, &job), TOLERANCE, &changes.to_string());
    }
}

/// The rollout's log-probs are the actor's. In bf16 they differ by the order in which products of batches
/// with other shapes are added: now and then by one rounding of a logit (2^-9).
#[test]
fn log_probs_of_the_rollout_are_the_actors_on_a_device() {
    for (precision, tolerance) in [("Fp32", 1e-5), ("Bf16", 0.05)] {
        let run = Run::new(1, &json!({ "training": { "precision": precision } }));
        for step in run.steps().iter().filter(|step| !step["rollout_corr/log_ppl_diff_max"].is_null()) {
            let off = step["rollout_corr/log_ppl_diff_max"].as_f64().unwrap();
            assert!(off < tolerance, "{precision}: {step}");
        }
        assert!(run.steps().len() >= 3);
    }
}

#[test]
fn a_job_for_any_device_that_breaks_a_rule_of_the_one_that_is_found_is_refused_before_its_first_step() {
    let experts = json!({
        "model": { "architecture": { "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 } } },
        "workers": { "count": 2, "mesh": { "dpShard": 2, "ep": 2 }, "device": "Auto" }
    });
    let wide_heads = json!({
        "model": { "architecture": { "headDim": 258 } },
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 4 } }, "workers": { "device": "Auto" }
    });
    for (changes, num_devices, reason) in [
        (experts, 2, "ranks with GPUs do not exchange rows of experts yet"),
        (wide_heads, 1, "the heads of Llama are 258 wide"),
    ] {
        let (code, error, num_steps) = refused(num_devices, &changes);
        assert!(error.contains(reason), "{error}");
        assert_eq!((code, num_steps), (Some(ExitCode::BadConfig.code().into()), 0), "{error}");
    }
}

#[test]
fn a_training_whose_graph_capture_fails_has_the_same_weights_and_reports_it() {
    let changes = json!({});
    let graphs = Run::new(1, &changes);
    // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
    let eager = Run::with(1, &changes, &[("RLT_STAND_IN_CAPTURE_FAILURE", "901")]);
    for (one, other) in graphs.steps().iter().zip(&eager.steps()) {
        assert_eq!(one["rollout/num_failed_graph_captures"], Value::Null, "{one}");
        let is_sampled = !other["timing_s/gen"].is_null();
        let failed = if is_sampled { json!(1.0) } else { Value::Null };
        assert_eq!(other["rollout/num_failed_graph_captures"], failed, "{other}");
    }
    assert_eq!(graphs.weights(), eager.weights());
}

/// Emulated devices refuse operators without a deterministic implementation on GPUs.
#[test]
fn deterministic_trainings_use_only_deterministic_operators() {
    for changes in [
        json!({ "algorithm": { "coldStart": { "steps": 1, "batchSize": 4 } }, "model": { "lora": { "rank": 4 } } }),
        json!({ "algorithm": { "kind": "PPO" }, "training": { "precision": "Bf16" } }),
        json!({ "model": { "architecture": { "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 } } } }),
    ] {
        let job = merged(&[json!({ "training": { "deterministic": true } }), changes]);
        assert_same(&Run::new(1, &job), &Run::new(1, &job), 0.0, &job.to_string());
    }
}

#[test]
fn offload_to_pinned_memory_changes_no_bit() {
    for (lora, precision) in [(json!(null), "Fp32"), (json!({ "rank": 4 }), "Bf16")] {
        let job = |offloaded: bool| {
            json!({
                "model": { "lora": lora, "architecture": { "numLayers": 2 } },
                "training": {
                    "activationCheckpointing": true, "precision": precision,
                    "offload": { "parameters": offloaded, "optimizer": offloaded, "activations": offloaded }
                }
            })
        };
        assert_same(&Run::new(1, &job(false)), &Run::new(1, &job(true)), 0.0, "the offloaded run");
    }
}

#[test]
fn a_resumed_run_on_a_device_is_the_uninterrupted_one() {
    for precision in ["Fp32", "Bf16"] {
        let steps = |steps: u32| json!({ "training": { "steps": steps, "precision": precision } });
        let (whole, resumed) = (Run::new(1, &steps(4)), Run::new(1, &steps(2)));
        resumed.go_on(1, &steps(4), &[]);
        assert_same(&whole, &resumed, 0.0, "the resumed run");
    }
}

#[test]
fn a_checkpoint_of_a_device_serves_a_cpu() {
    let steps =
        |steps: u32| json!({ "training": { "steps": steps, "optimizer": { "learningRate": 0.001 } } });
    let (whole, moved) = (Run::new(1, &steps(4)), Run::new(1, &steps(2)));
    moved.go_on(0, &steps(4), &[]);
    assert_same(&whole, &moved, TOLERANCE, "the run that went on on the CPU");
}

#[test]
fn samples_packed_together_give_what_each_gives_alone() {
    let job = |tokens: u32| {
        json!({
            "training": { "maxTokensPerMicroBatch": tokens, "maxLogprobTokens": tokens, "optimizer": { "learningRate": 0.001 } }
        })
    };
    assert_same(&Run::new(1, &job(512)), &Run::new(1, &job(24)), TOLERANCE, "the finely split run");
}

/// A step has three prompts, which two ranks cannot share evenly. Eight ranks are more than there are
/// prompts.
#[test]
fn any_number_of_ranks_with_devices_and_any_mesh_of_two_equal_one_rank() {
    let one = Run::new(1, &on_ranks(1));
    for count in [2, 8] {
        let many = Run::new(count, &on_ranks(count as u32));
        assert_same(&one, &many, TOLERANCE, &format!("{count} ranks"));
        let used: Vec<usize> = many.counts().iter().map(|counts| used_devices(&counts.peak_bytes)).collect();
        assert_eq!(
            used.iter().filter(|num| **num == 1).count(),
            count,
            "each rank uses one device: {used:?}"
        );
    }
    // The meshes are those of FSDP, sequence parallelism, and tensor-parallel rollouts.
    for mesh in [json!({ "dpShard": 2 }), json!({ "sp": 2 }), json!({ "rolloutTp": 2 })] {
        let changes = merged(&[on_ranks(2), json!({ "workers": { "mesh": mesh } })]);
        assert_same(&one, &Run::new(2, &changes), TOLERANCE, &mesh.to_string());
    }
}

/// A new model with a tower learns from pictures, with demonstrations first. Its features replace embeddings,
/// its positions have three axes, and it has windows (Qwen2.5-VL) or features that layers add (Qwen3-VL).
#[test]
fn trainings_with_images_on_one_device_and_on_two_give_the_cpus_numbers() {
    for (family, changes) in [
        ("Qwen25Vl", json!({ "model": { "lora": { "rank": 4, "vlmLora": "Both" } } })),
        ("Qwen3Vl", json!({ "model": { "visionTower": "Trained" } })),
        ("Qwen2Vl", json!({})),
    ] {
        let pictures = json!({
            "model": {
                "architecture": {
                    "family": family, "numHeads": 4, "maxPositionEmbeddings": 64,
                    "vision": { "hiddenSize": 32, "numLayers": 2, "numHeads": 2, "patchSize": 4, "mergeSize": 2 }
                },
                "tokenizer": { "characters": "0123456789 howmany?" }
            },
            "data": {
                "task": {
                    "kind": "CountingPictures", "operators": null, "maxOperand": null,
                    "pictures": { "cells": 2, "cellPixels": 8, "maxCount": 4 }
                },
                "maxPromptTokens": 20
            },
            // A tower's gradients are small, so smaller steps amplify their rounding errors less.
            "algorithm": { "coldStart": { "steps": 2, "batchSize": 4, "learningRate": 0.0003 } },
            "training": { "optimizer": { "learningRate": 0.0003 } },
            "rollout": { "maxCompletionTokens": 2 }
        });
        let job = |count: u32| merged(&[on_ranks(count), pictures.clone(), changes.clone()]);
        let cpu = Run::new(0, &job(1));
        assert_same(&cpu, &Run::new(1, &job(1)), TOLERANCE, &format!("{family} on a device"));
        let sharded = json!({ "workers": { "mesh": { "dpShard": 2 } } });
        let two = merged(&[job(2), sharded]);
        assert_same(&cpu, &Run::new(2, &two), TOLERANCE, &format!("{family} on two devices"));
    }
}

fn used_devices(peaks: &[u64]) -> usize {
    peaks.iter().filter(|bytes| **bytes > 0).count()
}

/// The model has two key heads, one for each rank.
#[test]
fn tensor_parallel_ranks_equal_one_rank_on_devices() {
    let model = json!({ "model": { "architecture": { "numHeads": 4, "numKvHeads": 2, "headDim": 8 } } });
    let critic = json!({
        "algorithm": { "kind": "PPO", "critic": { "learningRate": 0.01 }, "kl": { "placement": "Loss", "coefficient": 0.1 } }
    });
    let one = Run::new(1, &merged(&[on_ranks(1), model.clone(), critic.clone()]));
    let cut = json!({ "workers": { "mesh": { "tp": 2, "rolloutTp": 2 } } });
    assert_same(&one, &Run::new(2, &merged(&[on_ranks(2), model, critic, cut])), TOLERANCE, "tp");
}

/// The training is supervised, because in a rollout one rounding of bf16 may change a drawn token, and then
/// everything differs. Products of other shapes are added in another order: they differ by roundings of 2^-9,
/// which change a step of AdamW by at most twice its rate of 0.001.
#[test]
fn bf16_training_is_equal_packed_or_alone_on_one_device_or_two() {
    let job = |count: u32, tokens: u32, seed: u32| {
        let supervised = json!({
            "algorithm": { "kind": "SFT" }, "rewards": { "functions": [] },
            "training": {
                "precision": "Bf16", "maxTokensPerMicroBatch": tokens, "maxLogprobTokens": tokens, "seed": seed
            }
        });
        merged(&[on_ranks(count), supervised])
    };
    let one = Run::new(1, &job(1, 512, 1));
    assert_same(&one, &Run::new(1, &job(1, 24, 1)), 0.01, "the finely split run");
    assert_same(&one, &Run::new(2, &job(2, 512, 1)), 0.01, "two ranks");
    let other = difference(&one, &Run::new(1, &job(1, 512, 2)));
    assert!(other > 0.1, "another seed differs by {other} only: the bound says nothing");
}
