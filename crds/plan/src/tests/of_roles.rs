//! Tests of jobs whose roles have their own precision or degree.

use rlt_api::validate;
use serde_json::{Value, json};

use super::{Phase, bytes, manifest, qwen, spec};
use crate::{Machine, Models, Plan, plan_on};

/// PPO with a reference on GPUs that share the model.
fn planned(training: Value, mesh: Value) -> Plan {
    planned_as(json!({}), training, mesh)
}

/// Plans PPO as [`planned`] does, with further fields of `algorithm`.
fn planned_as(algorithm: Value, training: Value, mesh: Value) -> Plan {
    let mut spec = spec();
    spec["algorithm"] = json!({"kind": "PPO", "kl": {"placement": "Loss", "coefficient": 0.1}});
    spec["algorithm"].as_object_mut().unwrap().extend(algorithm.as_object().unwrap().clone());
    spec["training"].as_object_mut().unwrap().extend(training.as_object().unwrap().clone());
    spec["rewards"]["functions"] =
        json!([{"name": "taste", "kind": "Model", "model": {"path": "/models/taste"}}]);
    spec["workers"] = json!({"count": 2, "mesh": mesh, "device": "Cuda"});
    let job = validate(&manifest(&spec)).unwrap();
    plan_on(&job, &Models { policy: Some(qwen()), reward: vec![qwen()] }, &Machine::gpu("h100").unwrap())
}

fn seconds(plan: &Plan, phase: &str) -> f64 {
    plan.speed.as_ref().unwrap().phases.iter().find(|one| one.name == phase).unwrap().seconds
}

#[test]
fn the_weights_of_a_frozen_role_are_as_wide_as_it_computes() {
    let of = |roles: Value| planned(json!({"precision": "Bf16", "roles": roles}), json!({"dpShard": 2}));
    let part = qwen().parameter_count().total().div_ceil(2);
    let shared = of(json!({})).memory.unwrap();
    for (role, term) in [("reference", "reference weights"), ("rewardModels", "reward models")] {
        let own = of(json!({role: {"precision": "Fp32"}})).memory.unwrap();
        assert_eq!(bytes(&shared, Phase::Update, term), 2 * part, "{role}");
        assert_eq!(bytes(&own, Phase::Update, term), 4 * part, "{role}");
        assert_eq!(bytes(&own, Phase::Update, "critic"), bytes(&shared, Phase::Update, "critic"));
    }
    // Only the weights gathered for the fp32 role are wider.
    let wide = of(json!({"reference": {"precision": "Fp32"}})).memory.unwrap();
    let gathered = |memory, phase| bytes(memory, phase, "gathered weights");
    assert_eq!(gathered(&wide, Phase::Logprob), 2 * gathered(&shared, Phase::Logprob));
    assert_eq!(gathered(&wide, Phase::Update), gathered(&shared, Phase::Update));
    let judges = of(json!({"rewardModels": {"precision": "Fp32"}})).memory.unwrap();
    let judging = |memory| bytes(memory, Phase::Reward, "gathered reward model");
    assert_eq!(judging(&judges), 2 * judging(&shared));
}

#[test]
fn a_reference_that_follows_is_kept_in_fp32_and_computes_as_before() {
    let of = |algorithm| {
        planned_as(algorithm, json!({"precision": "Bf16"}), json!({"dpShard": 2})).memory.unwrap()
    };
    let (still, follows) = (of(json!({})), of(json!({"referenceSync": {}})));
    let part = qwen().parameter_count().total().div_ceil(2);
    let weights = |memory| bytes(memory, Phase::Update, "reference weights");
    assert_eq!((weights(&still), weights(&follows)), (2 * part, 4 * part));
    let gathered = |memory| bytes(memory, Phase::Logprob, "gathered weights");
    assert_eq!(gathered(&follows), gathered(&still));
}

#[test]
fn a_rank_keeps_a_shard_of_each_role_by_the_role_s_degree() {
    // The critic has the larger micro-batches, so its update determines the peak.
    let training = json!({"precision": "Bf16", "roles": {"critic": {"maxTokensPerMicroBatch": 32768}}});
    let of = |mesh: Value| planned(training.clone(), mesh).memory.unwrap();
    let (whole, total) = (of(json!({})), qwen().parameter_count().total());
    let mesh = json!({"referenceDpShard": 2, "criticDpShard": 2, "rewardModelDpShard": 2});
    let own = of(mesh);
    for (term, width, parameters) in [
        ("reference weights", 2, total),
        ("reward models", 2, total),
        ("critic", 4, total + 896),
        ("critic's optimizer state", 8, total + 896),
    ] {
        assert_eq!(bytes(&whole, Phase::Update, term), width * parameters, "{term}");
        assert_eq!(bytes(&own, Phase::Update, term), width * parameters.div_ceil(2), "{term}");
    }
    assert_eq!(bytes(&own, Phase::Update, "weights"), bytes(&whole, Phase::Update, "weights"));
    // Sharded weights are gathered, and the gradients of a sharded critic are reduced.
    for term in ["gathered weights", "gathered gradients"] {
        assert_eq!(bytes(&whole, Phase::Update, term), 0, "{term}");
        assert!(bytes(&own, Phase::Update, term) > 0, "{term}");
    }
}

#[test]
fn a_critic_in_wide_numbers_takes_memory_and_time_and_keeps_its_weights() {
    let of = |roles: Value| planned(json!({"precision": "Bf16", "roles": roles}), json!({}));
    let (shared, own) = (of(json!({})), of(json!({"critic": {"precision": "Fp32"}})));
    assert!(seconds(&own, "critic") > 1.5 * seconds(&shared, "critic"));
    for phase in ["log-probs", "update"] {
        assert_eq!(seconds(&own, phase), seconds(&shared, phase), "{phase}");
    }
    let (shared, own) = (shared.memory.unwrap(), own.memory.unwrap());
    assert_eq!(bytes(&own, Phase::Update, "critic"), bytes(&shared, Phase::Update, "critic"));
    let activations = |memory| bytes(memory, Phase::Update, "activations");
    assert!(activations(&own) > activations(&shared));
}

#[test]
fn a_reference_of_its_own_degree_or_precision_takes_its_own_time() {
    let of = |roles: Value, mesh: Value| planned(json!({"precision": "Bf16", "roles": roles}), mesh);
    let shared = of(json!({}), json!({}));
    let wide = of(json!({"reference": {"precision": "Fp32"}}), json!({}));
    assert!(seconds(&wide, "log-probs") > 1.5 * seconds(&shared, "log-probs"));
    // A sequence-parallel group of two ranks makes one pass with twice the budget, so weights are read once.
    let budget = json!({"reference": {"maxForwardTokens": 2048}});
    let (alone, split) = (of(budget.clone(), json!({})), of(budget, json!({"referenceSp": 2})));
    assert_eq!((split.mesh.logprob_sp, split.mesh.reference_sp), (1, 2));
    let bytes_read = |plan: &Plan| {
        let speed = plan.speed.as_ref().unwrap();
        speed.phases.iter().find(|phase| phase.name == "log-probs").unwrap().bytes
    };
    assert_ne!(bytes_read(&split), bytes_read(&alone));
    assert_eq!(seconds(&split, "update"), seconds(&alone, "update"));
}
