//! Plans of jobs on models with a vision tower.

use serde_json::{Value, json};

use super::{Models, Phase, bytes, manifest, spec};
use crate::plan::model_config::ModelConfig;
use crate::plan::{KEPT_FEATURES_BYTES, check_model, plan, planned_model};
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

/// Tokens of images are tokens of a prompt: in the sequences of the cache, and as patches of the tower.
#[test]
fn tokens_of_images_count_as_those_of_the_prompt_that_they_are() {
    let described = |max_prompt_tokens: u32| {
        let mut spec = spec();
        spec["model"] = json!({
            "architecture": {
                "family": "Qwen25Vl", "hiddenSize": 64, "intermediateSize": 96, "numLayers": 2, "numHeads": 4,
                "maxPositionEmbeddings": 4096,
                "vision": {"hiddenSize": 32, "numLayers": 2, "numHeads": 2, "patchSize": 4}
            },
            "tokenizer": {"characters": "0123456789+-*= howmany?"}
        });
        spec["data"]["maxPromptTokens"] = max_prompt_tokens.into();
        spec["workers"] = json!({"device": "Cpu"});
        validate(&manifest(&spec)).unwrap()
    };
    let planned = |tokens: u32| {
        let job = described(tokens);
        let model = planned_model(&job).unwrap().unwrap();
        assert_eq!(model.vocab_size, 23 + 4 + 4, "alphabet, special tokens and those of images");
        let models = Models { policy: Some(model), reward: Vec::new() };
        plan(&job, &models).memory.unwrap()
    };
    let [short, long] = [64, 640].map(planned);
    let tower = |memory| bytes(memory, Phase::Rollout, "tower activations");
    assert_eq!(tower(&long), 10 * tower(&short));
    let cache = |memory| bytes(memory, Phase::Rollout, "KV cache");
    // Keys and values of 576 tokens more of each of the 8 prompts, which the samples of a group share.
    let bytes_per_token = 2 * 2 * 64 * 4;
    let more = cache(&long) - cache(&short);
    assert!((8 * 576 * bytes_per_token..8 * 600 * bytes_per_token).contains(&more), "{more}");
}
