//! Every algorithm, estimator, loss and model family that a manifest can name trains: full runs of two steps
//! in this process, from the manifest to the exported model. The workspace's local runs start one manifest of
//! each recipe as a process.

use rlt_api::resolved::ResolvedAlgorithm;
use rlt_tests::{choices, merge, tiny_job_with};
use serde_json::{Value, json};

use super::*;

/// The presets that train on rows alone and have no rewards.
const WITHOUT_REWARDS: [&str; 2] = ["SFT", "RewardModel"];
/// The families with a vision tower.
const VISION_LANGUAGE: [&str; 3] = ["Qwen2Vl", "Qwen25Vl", "Qwen3Vl"];
/// The families that are mixtures of experts.
const MIXTURES: [&str; 6] = ["Mixtral", "Qwen2Moe", "Qwen3Moe", "DeepseekV2", "DeepseekV3", "GptOss"];

/// Returns the name of the metric with the loss of step `step_idx`, counted from 0.
fn loss_metric(algorithm: &ResolvedAlgorithm, step_idx: u32) -> &'static str {
    let Some(policy_gradient) = &algorithm.policy_gradient else {
        let is_preference = algorithm.preference.is_some();
        let of_rows = if algorithm.reward_model.is_some() { "reward_model/loss" } else { "sft/loss" };
        return if is_preference { "preference/loss" } else { of_rows };
    };
    // The critic trains alone in its warm-up.
    let num_warmup_steps = policy_gradient.critic.as_ref().and_then(|critic| critic.warmup_steps);
    if step_idx < num_warmup_steps.unwrap_or(0) { "critic/vf_loss" } else { "actor/pg_loss" }
}

/// Reads the training steps from `metrics.jsonl` of the run folder `root`, without evaluations.
fn steps_of(root: &Path) -> Vec<Value> {
    let metrics = std::fs::read_to_string(root.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["training/phase"] == 1 && line["step"] != 0).collect()
}

/// Trains the tiny job with `changes` for two steps, and checks their losses and the export. Policy gradients
/// make two updates a step, so that the ratios of the second one are not all 1.
#[track_caller]
fn assert_trains(mut changes: Value) {
    merge(&mut changes, json!({ "training": { "steps": 2 }, "checkpoint": { "everySteps": 0 } }));
    if WITHOUT_REWARDS.iter().any(|kind| changes["algorithm"]["kind"] == *kind) {
        changes["rewards"] = Value::Null;
    }
    let resolved = rlt_api::validate(&tiny_job_with(changes.clone()).to_string()).unwrap();
    let algorithm = &resolved.spec().algorithm;
    if algorithm.policy_gradient.is_some() {
        merge(&mut changes, json!({ "training": { "promptsPerUpdate": 1 } }));
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("run");
    let (mut run, mut roles, mut data) = set_up(&tiny_job_with(changes.clone()).to_string(), &root);
    assert_eq!(train(&mut run, &mut roles, &mut data).unwrap(), Outcome::Complete, "{changes}");
    let steps = steps_of(&root);
    assert_eq!(steps.len(), 2, "{changes}");
    for (step, step_idx) in steps.iter().zip(0..) {
        assert!(step[loss_metric(algorithm, step_idx)].is_number(), "{changes}: {step}");
        assert_eq!(step["training/num_skipped_updates"], 0.0, "{changes}: {step}");
    }
    assert!(root.join("export/model.safetensors").exists(), "{changes}");
}

#[test]
fn every_preset_trains() {
    for kind in choices("spec.algorithm.kind") {
        // ProcessReward trains on completions of several steps, which no generated task has. Other tests
        // cover it.
        if kind == "ProcessReward" {
            continue;
        }
        // The default warm-up of VAPO's critic is longer than two steps.
        let critic = if kind == "VAPO" { json!({ "warmupSteps": 1 }) } else { Value::Null };
        assert_trains(json!({ "algorithm": { "kind": kind, "critic": critic } }));
    }
}

#[test]
fn every_advantage_estimator_trains() {
    for estimator in choices("spec.algorithm.advantage.estimator") {
        assert_trains(json!({ "algorithm": { "advantage": { "estimator": estimator } } }));
    }
}

#[test]
fn every_policy_loss_trains() {
    for policy in choices("spec.algorithm.loss.policy") {
        assert_trains(json!({ "algorithm": { "loss": { "policy": policy } } }));
    }
}

#[test]
fn every_preference_loss_and_divergence_trains() {
    for field in ["loss", "divergence"] {
        for choice in choices(&format!("spec.algorithm.preference.{field}")) {
            assert_trains(json!({ "algorithm": { "kind": "DPO", "preference": { field: choice } } }));
        }
    }
}

#[test]
fn every_aggregation_trains() {
    for aggregation in choices("spec.algorithm.loss.aggregation") {
        assert_trains(json!({ "algorithm": { "loss": { "aggregation": aggregation } } }));
    }
}

#[test]
fn every_kl_estimator_trains_in_the_loss_and_in_the_reward() {
    for estimator in choices("spec.algorithm.kl.estimator") {
        for placement in ["Loss", "Reward"] {
            let kl = json!({ "placement": placement, "estimator": estimator });
            assert_trains(json!({ "algorithm": { "kl": kl } }));
        }
    }
}

#[test]
fn every_family_trains() {
    for family in choices("spec.model.architecture.family") {
        let mut changes = json!({ "model": { "architecture": { "family": family } } });
        if MIXTURES.contains(&family.as_str()) {
            changes["model"]["architecture"]["experts"] = json!({ "count": 4, "perToken": 2 });
        }
        if VISION_LANGUAGE.contains(&family.as_str()) {
            merge(&mut changes, pictures());
        }
        assert_trains(changes);
    }
}

/// Returns changes of the job: a vision tower, and pictures of one token instead of sums.
fn pictures() -> Value {
    let tower = json!({ "hiddenSize": 16, "numLayers": 1, "numHeads": 2, "patchSize": 4, "mergeSize": 2 });
    let task = json!({
        "kind": "CountingPictures", "operators": null, "maxOperand": null,
        "pictures": { "cells": 1, "cellPixels": 8, "maxCount": 1 },
    });
    json!({
        "model": { "architecture": { "vision": tower }, "tokenizer": { "characters": "0123456789 howmany?" } },
        "data": { "task": task, "maxPromptTokens": 16 },
    })
}
