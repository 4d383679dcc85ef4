//! Tests of degrees and lengths that a model does not allow: the refusal lists those that it allows.

use rlt_api::validate;
use rlt_models::{ModelConfig, QkNorm, RopeScaling};
use serde_json::{Value, json};

use super::{check_model, manifest, qwen, spec};

#[test]
fn a_degree_of_rollout_shards_that_the_layers_do_not_allow_is_answered_with_those_that_they_do() {
    // The model has 14 query heads, 2 key heads, and feed-forward blocks of width 4864.
    let refusal = |rollout_tp: u32| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 28, "mesh": {"rolloutTp": rollout_tp}, "device": "Cpu"});
        let job = validate(&manifest(&spec)).unwrap();
        check_model(job.spec(), &qwen()).err().map(|refusal| refusal.to_string())
    };
    for tp in [1, 2] {
        assert_eq!(refusal(tp), None);
    }
    for tp in [4, 7, 14] {
        let text = refusal(tp).unwrap();
        let expected = format!("spec.workers.mesh.rolloutTp: {tp} ranks cannot share the layers");
        assert!(text.starts_with(&expected) && text.ends_with("expected one of 1, 2"), "{text}");
    }
}

#[test]
fn norms_over_all_heads_exclude_tensor_parallelism_and_long_rope_bounds_sequences() {
    let refusal = |model: &ModelConfig, completion: u32, mesh: Value| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 2, "mesh": mesh, "device": "Cpu"});
        spec["rollout"]["maxCompletionTokens"] = completion.into();
        let job = validate(&manifest(&spec)).unwrap();
        check_model(job.spec(), model).err().map(|refusal| refusal.to_string())
    };
    let over_heads = ModelConfig { qk_norm: QkNorm::AllHeads, ..qwen() };
    assert_eq!(refusal(&over_heads, 64, json!({ "sp": 2 })), None);
    let sliced = refusal(&over_heads, 64, json!({ "rolloutTp": 2 })).unwrap();
    assert!(sliced.starts_with("spec.workers.mesh.rolloutTp: 2 ranks cannot share"), "{sliced}");
    let each_head = ModelConfig { qk_norm: QkNorm::EachHead, ..qwen() };
    assert_eq!(refusal(&each_head, 64, json!({ "sp": 2 })), None);
    let sliced = refusal(&each_head, 64, json!({ "rolloutTp": 2 })).unwrap();
    assert!(sliced.contains("weights of its own") && sliced.ends_with("expected 1"), "{sliced}");
    let mut long = qwen();
    long.ropes[0].scaling = RopeScaling::LongRope {
        short_factors: vec![1.0; 32],
        long_factors: vec![2.0; 32],
        attention_factor: 1.0,
        original_max_position_embeddings: 1024.0,
    };
    assert_eq!(refusal(&long, 64, json!({})), None);
    let too_long = refusal(&long, 4096, json!({})).unwrap();
    assert!(too_long.contains("maxCompletionTokens") && too_long.contains("at most 1024"), "{too_long}");
}

#[test]
fn an_invalid_sequence_parallel_degree_is_refused_with_the_valid_ones() {
    // The model has 14 query heads and 2 key heads.
    let refusal = |sp: u32| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 28, "mesh": {"sp": sp}, "device": "Cpu"});
        let job = validate(&manifest(&spec)).unwrap();
        check_model(job.spec(), &qwen()).err().map(|refusal| refusal.to_string())
    };
    for sp in [1, 2, 14] {
        assert_eq!(refusal(sp), None);
    }
    for sp in [4, 7, 28] {
        let text = refusal(sp).unwrap();
        let expected = format!("spec.workers.mesh.sp: {sp} ranks");
        assert!(text.starts_with(&expected) && text.ends_with("expected one of 1, 2, 14"), "{text}");
    }
}
