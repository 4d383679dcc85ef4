//! Plans of jobs that train a reward model.

use serde_json::{Value, json};

use super::{Phase, bytes, planned, qwen};

fn of_pairs(kind: &str, model: Value) -> super::Plan {
    planned(|spec| {
        spec["algorithm"] = json!({"kind": kind});
        spec["rewards"] = json!({});
        spec["training"]["precision"] = "Bf16".into();
        spec["model"] = model;
    })
}

#[test]
fn a_reward_model_is_its_body_with_a_row_for_its_head_and_nothing_is_sampled() {
    let full = of_pairs("RewardModel", json!({"path": "/models/qwen"}));
    let body = qwen().parameter_count().total();
    assert_eq!(full.parameters.unwrap().total, body + 896);
    assert_eq!(full.parameters.unwrap().trainable, body + 896);
    assert_eq!(full.batch.samples_per_step, 16, "two completions a pair");
    let memory = full.memory.unwrap();
    assert!(!memory.phases.iter().any(|phase| [Phase::Rollout, Phase::WeightSync].contains(&phase.phase)));
    assert_eq!(bytes(&memory, Phase::Update, "optimizer state"), 8 * (body + 896));
    // The head gives one value for each token, that of a policy one for each token of the vocabulary.
    assert!(bytes(&memory, Phase::Update, "loss head chunk") <= 2 * 1024);
    let policy = of_pairs("DPO", json!({"path": "/models/qwen"})).memory.unwrap();
    assert_eq!(bytes(&memory, Phase::Update, "reference weights"), 0);
    assert!(
        bytes(&policy, Phase::Update, "loss head casts") > bytes(&memory, Phase::Update, "loss head casts")
    );
    assert!(memory.peak_bytes < policy.peak_bytes);
}

#[test]
fn an_adapter_of_a_reward_model_is_trained_with_its_head() {
    let model = json!({"path": "/models/qwen", "lora": {"rank": 8}});
    let [reward_model, policy] =
        ["RewardModel", "DPO"].map(|kind| of_pairs(kind, model.clone()).parameters.unwrap());
    assert_eq!(reward_model.trainable, policy.trainable + 896);
}
