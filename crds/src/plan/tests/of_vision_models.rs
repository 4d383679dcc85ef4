//! Plans of jobs on models with a vision tower.

use serde_json::{Value, json};

use super::{Models, Phase, bytes, manifest, spec};
use crate::plan::model_config::ModelConfig;
use crate::plan::{KEPT_FEATURES_BYTES, check_model, plan};
use crate::{ValidatedJob, validate};

fn model() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen2VLForConditionalGeneration"], "vocab_size": 512, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {"embed_dim": 32, "hidden_size": 64, "depth": 2, "num_heads": 2, "patch_size": 4}
    }))
    .unwrap()
}

fn job(workers: Value) -> ValidatedJob {
    let mut spec = spec();
    spec["model"] = json!({"path": "/models/vision"});
    spec["workers"] = workers;
    validate(&manifest(&spec)).unwrap()
}

#[test]
fn every_rank_has_the_whole_tower_and_features_of_images() {
    let models = Models { policy: Some(model()), reward: Vec::new() };
    for workers in [json!({"device": "Cpu"}), json!({"device": "Cpu", "count": 2, "mesh": {"dpShard": 2}})] {
        let memory = plan(&job(workers), &models).memory.unwrap();
        assert_eq!(bytes(&memory, Phase::Update, "vision tower"), 4 * model().num_vision_parameters());
        assert_eq!(bytes(&memory, Phase::Update, "image features"), KEPT_FEATURES_BYTES);
        assert!(bytes(&memory, Phase::Rollout, "tower activations") > 0);
    }
}

#[test]
fn what_a_tower_takes_no_part_in_is_refused_by_its_field() {
    let refusal = |workers: Value| check_model(job(workers).spec(), &model()).unwrap_err().to_string();
    assert_eq!(
        check_model(job(json!({"device": "Cpu", "count": 2, "mesh": {"dpShard": 2}})).spec(), &model()),
        Ok(())
    );
    for (field, mesh) in [("sp", json!({"sp": 2})), ("rolloutTp", json!({"rolloutTp": 2}))] {
        let error = refusal(json!({"device": "Cpu", "count": 2, "mesh": mesh}));
        assert!(
            error.starts_with(&format!("spec.workers.mesh.{field}: Qwen2Vl has a vision tower")),
            "{error}"
        );
    }
    let error = refusal(json!({"device": "Cuda", "count": 1}));
    assert!(error.starts_with("spec.workers.device: Qwen2Vl has a vision tower: expected Cpu"), "{error}");
}
