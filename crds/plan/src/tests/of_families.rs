//! Unsupported features of model families, and the errors for jobs that request them.

use rlt_api::validate;
use rlt_models::{Family, ModelConfig};
use serde_json::{Value, json};

use super::{check_model, manifest, qwen, spec};

/// Reason why `model` cannot be trained with these workers.
fn refusal(model: &ModelConfig, workers: Value, algorithm: &str) -> Option<String> {
    let mut spec = spec();
    spec["workers"] = workers;
    spec["algorithm"] = json!({"kind": algorithm});
    if algorithm == "RewardModel" {
        spec["rewards"] = json!({});
    }
    let job = validate(&manifest(&spec)).unwrap();
    check_model(job.spec(), model).err().map(|refusal| refusal.to_string())
}

#[test]
fn attention_sinks_are_computed_on_cpus_by_ranks_that_each_have_all_heads() {
    let model = ModelConfig { family: Family::GptOss, attention_sinks: true, ..qwen() };
    let workers = |mesh: Value, device: &str| json!({"count": 2, "mesh": mesh, "device": device});
    assert_eq!(refusal(&model, workers(json!({"dpShard": 2}), "Cpu"), "GRPO"), None);
    for (field, mesh) in [
        ("sp", json!({"sp": 2})),
        ("logprobSp", json!({"logprobSp": 2})),
        ("referenceSp", json!({"referenceSp": 2})),
        ("rolloutTp", json!({"rolloutTp": 2})),
    ] {
        let text = refusal(&model, workers(mesh, "Cpu"), "GRPO").unwrap();
        let begins = format!("spec.workers.mesh.{field}: 2 ranks cannot share the ");
        assert!(text.starts_with(&begins) && text.contains("sink for each head"), "{text}");
        assert!(text.ends_with("expected 1"), "{text}");
    }
    let on_a_gpu = refusal(&model, workers(json!({}), "Cuda"), "GRPO").unwrap();
    assert!(on_a_gpu.starts_with("spec.workers.device: GptOss has attention sinks"), "{on_a_gpu}");
}

#[test]
fn heads_too_wide_for_the_rollout_on_gpus_are_refused_there_before_any_step() {
    let text = |head_dim: usize, device: &str, algorithm: &str| {
        let model = ModelConfig { head_dim, ..qwen() };
        refusal(&model, json!({"device": device}), algorithm)
    };
    let refused = text(258, "Cuda", "GRPO").unwrap();
    assert!(refused.starts_with("spec.workers.device: the heads of Qwen2 are 258 wide"), "{refused}");
    assert_eq!(text(258, "Cpu", "GRPO"), None);
    assert_eq!(text(258, "Cuda", "RewardModel"), None, "nothing is sampled");
    for padded in [10, 20, 250, 256] {
        assert_eq!(text(padded, "Cuda", "GRPO"), None, "{padded}");
    }
}

#[test]
fn a_reward_model_is_refused_of_the_families_without_a_classifier_in_transformers() {
    let workers = || json!({"device": "Cpu"});
    for family in [Family::Cohere, Family::Cohere2, Family::Ernie45] {
        let model = ModelConfig { family, ..qwen() };
        let text = refusal(&model, workers(), "RewardModel").unwrap();
        let begins = format!("spec.algorithm: {family:?} has no classifiers in transformers");
        assert!(text.starts_with(&begins) && text.ends_with("got a reward model"), "{text}");
        assert_eq!(refusal(&model, workers(), "GRPO"), None);
    }
    assert_eq!(refusal(&qwen(), workers(), "RewardModel"), None);
}
