//! The plan's estimate of memory compared with the peak that the run reports, both without pages of program
//! and libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place, copy_of_small_model, merge, tiny};

/// How far the estimate may be from the peak.
const TOLERANCE: f64 = 0.15;

/// GiB by which a job may stay below the estimate: the size of the code and the buffers of the libraries for
/// products depends on the CPU.
const PRODUCTS: f64 = 20.0 / 1024.0;

/// The estimate of `rlctl plan` for the job in `manifest`, run from `folder`, in GiB.
pub(crate) fn estimate(manifest: &Path, folder: &Path) -> f64 {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    let planned =
        command.args(["plan", "-o", "json", "-f"]).arg(manifest).current_dir(folder).output().unwrap();
    let plan: Value = serde_json::from_str(&Ended::of(planned).expect(0, &[]).stdout).unwrap();
    plan["memory"]["peakBytes"].as_f64().unwrap() / f64::from(1 << 30)
}

/// The peak that the run in `folder` reports, in GiB.
pub(crate) fn measured(folder: &Path) -> f64 {
    assert!(!rlt_tests::is_in_memory(folder), "files of this run count as memory of its process");
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["perf/cpu_memory_used_gb"].as_f64()).fold(0.0, f64::max)
}

/// Checks that the run in `folder` took the estimated memory.
#[track_caller]
pub(crate) fn assert_taken(name: &str, estimate: f64, folder: &Path) {
    let measured = measured(folder);
    let range = measured * (1.0 - TOLERANCE)..=measured * (1.0 + TOLERANCE) + PRODUCTS;
    assert!(
        range.contains(&estimate),
        "{name}: {estimate:.3} GiB are estimated, {measured:.3} GiB were taken"
    );
}

/// Returns a job whose tensors outweigh the process around them, and whose passes are full: every prompt has
/// the maximum length, and nothing ends a completion early.
pub(crate) fn large() -> Value {
    let mut manifest = tiny();
    merge(
        &mut manifest["spec"],
        json!({
            "model": { "architecture": {
                "hiddenSize": 384, "intermediateSize": 1024, "numLayers": 6, "numHeads": 6, "maxPositionEmbeddings": 128
            } },
            "data": { "task": { "maxOperand": 999_999, "zeroPadded": true }, "maxPromptTokens": 15 },
            "rewards": { "functions": [{ "name": "near", "kind": "MatchingCharacters" }] },
            "rollout": { "samplesPerPrompt": 8, "maxCompletionTokens": 64, "ignoreEos": true },
            "training": { "steps": 1, "promptsPerStep": 4, "optimizer": { "learningRate": 1e-4 } },
            "checkpoint": { "everySteps": 0 }
        }),
    );
    manifest
}

pub(crate) fn train_as_estimated(name: &str, place: &Place, manifest: &Value) {
    let estimate = estimate(&place.write(manifest), &place.file(""));
    place.train(manifest).expect(0, &[]);
    assert_taken(name, estimate, &place.run(""));
}

#[test]
fn the_estimate_is_met_whatever_a_job_trains_and_keeps() {
    let jobs = [
        (
            "a reference in a file",
            json!({ "algorithm": { "kl": { "placement": "Loss", "coefficient": 0.01 } } }),
        ),
        ("an adapter", json!({ "model": { "lora": { "rank": 16 } } })),
        // The base stays packed during updates.
        (
            "an adapter beside its base",
            json!({ "model": { "lora": { "rank": 16, "merge": false } }, "training": { "steps": 2 } }),
        ),
        // Sampling takes the most memory here. The optimizer's state exists from the second rollout on.
        ("checkpointed activations", json!({ "training": { "activationCheckpointing": true, "steps": 2 } })),
        ("half precision", json!({ "training": { "precision": "Bf16" } })),
        ("few key heads", json!({ "model": { "architecture": { "family": "Qwen3", "numKvHeads": 2 } } })),
    ];
    for (name, changes) in jobs {
        let mut manifest = large();
        merge(&mut manifest["spec"], changes);
        train_as_estimated(name, &Place::on_disk(), &manifest);
    }
}

/// Batches of the cold start have more tokens than an update, because each prompt has its own answer.
#[test]
fn a_cold_start_of_larger_batches_is_estimated() {
    let mut manifest = large();
    merge(
        &mut manifest["spec"],
        json!({
            "algorithm": { "coldStart": { "steps": 2, "batchSize": 64 } },
            "rollout": { "samplesPerPrompt": 2, "maxCompletionTokens": 8 },
            "training": { "promptsPerStep": 1 },
        }),
    );
    train_as_estimated("a cold start", &Place::on_disk(), &manifest);
}

/// Pictures of 64 tokens, a patch of 8 x 8 pixels each, and a tower that weighs as much as the rest.
/// Completions are so short that a micro-batch has the pictures of a whole step.
#[test]
fn the_estimate_is_met_with_images_and_a_tower_frozen_trained_or_adapted() {
    let architecture = json!({
        "family": "Qwen25Vl", "numKvHeads": null, "maxPositionEmbeddings": 128,
        "vision": { "hiddenSize": 256, "numLayers": 6, "numHeads": 4, "patchSize": 8, "mergeSize": 2 },
    });
    let pictures = json!({
        "task": {
            "kind": "CountingPictures", "pictures": { "cells": 8, "cellPixels": 16, "maxCount": 64 }, "numTrain": 64,
            "maxOperand": null, "operators": null, "zeroPadded": null,
        },
        "maxPromptTokens": 80,
    });
    let jobs = [
        ("a frozen tower", json!({})),
        ("a frozen tower in half precision", json!({ "training": { "precision": "Bf16" } })),
        ("a trained tower", json!({ "model": { "visionTower": "Trained" } })),
        (
            "a trained tower whose images are computed again",
            json!({ "model": { "visionTower": "Trained" }, "training": { "activationCheckpointing": true } }),
        ),
        ("an adapter of text and tower", json!({ "model": { "lora": { "rank": 16, "vlmLora": "Both" } } })),
    ];
    for (name, changes) in jobs {
        let mut manifest = large();
        let model =
            json!({ "architecture": architecture, "tokenizer": { "characters": "0123456789 howmany?" } });
        let short = json!({ "maxCompletionTokens": 8 });
        merge(
            &mut manifest["spec"],
            json!({ "model": model, "data": pictures, "rollout": short, "training": { "steps": 2 } }),
        );
        merge(&mut manifest["spec"], changes);
        train_as_estimated(name, &Place::on_disk(), &manifest);
    }
}

#[test]
fn ranks_that_share_a_model_sample_from_the_one_whole_copy_that_is_packed() {
    for precision in ["Fp32", "Bf16"] {
        let mut manifest = large();
        merge(
            &mut manifest["spec"],
            json!({
                "workers": { "count": 2, "mesh": { "dpShard": 2 } },
                "training": {
                    "precision": precision, "activationCheckpointing": true, "steps": 2,
                    "maxTokensPerMicroBatch": 160, "maxLogprobTokens": 160
                }
            }),
        );
        train_as_estimated(precision, &Place::on_disk(), &manifest);
    }
}

/// Makes a tokenizer folder with `num_tokens` tokens, of which only the first few occur.
fn with_vocabulary(place: &Place, num_tokens: usize) -> PathBuf {
    let folder = place.file("tokenizer");
    copy_of_small_model(&folder);
    let path = folder.join("tokenizer.json");
    let mut definition: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let vocabulary = definition["model"]["vocab"].as_object_mut().unwrap();
    for token_id in vocabulary.len()..num_tokens {
        vocabulary.insert(format!("token{token_id}"), token_id.into());
    }
    fs::write(path, definition.to_string()).unwrap();
    folder
}

#[test]
fn a_large_vocabulary_is_estimated_from_the_models_own_configuration() {
    let (first, second) = (Place::on_disk(), Place::on_disk());
    let mut manifest = large();
    let tokenizer = json!({ "characters": null, "path": with_vocabulary(&first, 50_000) });
    merge(
        &mut manifest["spec"],
        json!({ "model": { "tokenizer": tokenizer }, "algorithm": { "kind": "SFT" } }),
    );
    first.train(&manifest).expect(0, &[]);
    let model = json!({ "architecture": null, "tokenizer": null, "path": first.run("export") });
    merge(&mut manifest["spec"], json!({ "model": model, "algorithm": { "kind": "DrGRPO" } }));
    train_as_estimated("50 000 tokens", &second, &manifest);
}
