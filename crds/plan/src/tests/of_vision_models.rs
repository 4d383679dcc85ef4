//! Plans of jobs on models with a vision tower.

use rlt_api::{ValidatedJob, validate};
use rlt_models::{KEPT_FEATURES_BYTES, ModelConfig};
use serde_json::{Value, json};

use super::{Models, Phase, Place, bytes, check_model, manifest, place, spec};
use crate::{plan, planned_model};

pub(super) fn model() -> ModelConfig {
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
fn axes_that_cannot_split_a_vision_tower_are_refused_by_field() {
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
    assert_eq!(check_model(job(json!({"device": "Cuda", "count": 1})).spec(), &model()), Ok(()));
}

#[test]
fn an_adapter_of_the_tower_takes_numbers_gradients_and_activations() {
    let models = Models { policy: Some(model()), reward: Vec::new() };
    let planned = |parts: &str, more: Value| {
        let mut spec = spec();
        spec["model"] = json!({"path": "/models/vision", "lora": {"rank": 4, "vlmLora": parts}});
        spec["workers"] = json!({"device": "Cpu"});
        spec["training"]["activationCheckpointing"] = more;
        plan(&validate(&manifest(&spec)).unwrap(), &models).memory.unwrap()
    };
    let [text, vision, both] = ["Text", "Vision", "Both"].map(|parts| planned(parts, true.into()));
    let gradients = |memory| bytes(memory, Phase::Update, "gradients");
    // Inputs and outputs of the linear layers: two blocks of width 32, and the merger of four patches.
    let of_tower = 2 * ((32 + 96) + 2 * 32 + 2 * (32 + 128)) + (128 + 128) + (128 + 64);
    assert_eq!(gradients(&vision), 4 * 4 * of_tower);
    assert_eq!(gradients(&both), gradients(&text) + gradients(&vision));
    let moments = |memory| bytes(memory, Phase::Update, "optimizer state");
    assert_eq!(moments(&both), moments(&text) + 2 * 4 * 4 * of_tower);
    let tower = |memory, phase| bytes(memory, phase, "tower activations");
    assert_eq!((tower(&text, Phase::Update), tower(&text, Phase::Logprob)), (0, 0));
    assert_eq!(tower(&both, Phase::Logprob), tower(&both, Phase::Rollout));
    let kept = planned("Both", false.into());
    assert!(tower(&kept, Phase::Update) > tower(&both, Phase::Update));
    assert!(tower(&both, Phase::Update) > tower(&both, Phase::Rollout));
}

#[test]
fn a_trained_tower_is_a_part_of_the_model_that_ranks_share() {
    let models = Models { policy: Some(model()), reward: Vec::new() };
    let planned = |tower: &str, workers: Value| {
        let mut spec = spec();
        spec["model"] = json!({"path": "/models/vision", "visionTower": tower});
        spec["workers"] = workers;
        spec["algorithm"]["kl"] = json!({"placement": "Loss", "coefficient": 0.1});
        plan(&validate(&manifest(&spec)).unwrap(), &models).memory.unwrap()
    };
    let alone = json!({"device": "Cpu"});
    let [frozen, trained] = ["Frozen", "Trained"].map(|tower| planned(tower, alone.clone()));
    let tower = model().num_vision_parameters();
    let more = |name: &str, phase| bytes(&trained, phase, name) - bytes(&frozen, phase, name);
    assert_eq!(more("weights", Phase::Update), 4 * tower);
    assert_eq!(more("gradients", Phase::Update), 4 * tower);
    assert_eq!(more("optimizer state", Phase::Update), 8 * tower);
    assert_eq!(more("reference weights", Phase::Logprob), 4 * tower);
    assert_eq!(bytes(&trained, Phase::Update, "vision tower"), 0);
    assert!(bytes(&trained, Phase::Update, "tower activations") > 0);
    let shared = planned("Trained", json!({"device": "Cpu", "count": 2, "mesh": {"dpShard": 2}}));
    assert_eq!(
        bytes(&shared, Phase::Update, "weights"),
        bytes(&trained, Phase::Update, "weights").div_ceil(2)
    );
    for phase in [Phase::WeightSync, Phase::Rollout] {
        assert_eq!(bytes(&shared, phase, "tower in the rollout"), 4 * tower);
        assert_eq!(bytes(&trained, phase, "tower in the rollout"), 0);
    }
}

#[test]
fn features_are_kept_of_numbers_that_stay_and_of_the_rollouts_version() {
    let models = Models { policy: Some(model()), reward: Vec::new() };
    let kept = |tower: &str, algorithm: Value| {
        let mut spec = spec();
        spec["model"] = json!({"path": "/models/vision", "visionTower": tower});
        spec["workers"] = json!({"device": "Cpu"});
        spec["algorithm"] = algorithm;
        let memory = plan(&validate(&manifest(&spec)).unwrap(), &models).memory.unwrap();
        let of = |name| bytes(&memory, Phase::Rollout, name) / KEPT_FEATURES_BYTES;
        (of("image features"), of("image features of the rollout"))
    };
    let none = json!({"kind": "DAPO"});
    let reference = json!({"kind": "GRPO", "kl": {"placement": "Loss", "coefficient": 0.1}});
    assert_eq!(kept("Frozen", none.clone()), (1, 0));
    assert_eq!(kept("Frozen", reference.clone()), (1, 0));
    assert_eq!(kept("Trained", none), (0, 1));
    assert_eq!(kept("Trained", reference), (1, 1));
}

/// A critic has its own tower and micro-batches. Casts of weights are kept for the backward pass.
#[test]
fn an_update_of_a_tower_keeps_what_its_backward_pass_needs_of_the_largest_micro_batch() {
    let models = Models { policy: Some(model()), reward: Vec::new() };
    let activations = |more: Value| {
        let mut spec = spec();
        spec["model"] = json!({"path": "/models/vision", "visionTower": "Trained"});
        spec["workers"] = json!({"device": "Cpu"});
        spec["algorithm"] = json!({"kind": "PPO"});
        spec["training"]["activationCheckpointing"] = false.into();
        let training = spec["training"].as_object_mut().unwrap();
        training.extend(more.as_object().unwrap().clone());
        let memory = plan(&validate(&manifest(&spec)).unwrap(), &models).memory.unwrap();
        bytes(&memory, Phase::Update, "tower activations")
    };
    // A token has four patches. Each keeps its pixels, two blocks of width 32 whose norms keep nothing in
    // fp32, and its share of the merger.
    let of_patch = 96 + 2 * (9 * 32 + 3 * 128) + 4 * 32;
    let of_image = 4 * 512 * 4 * (8 * 32 + 3 * 128 + 96);
    let expected = |width: u64, tokens: u64| 4 * tokens * width * of_patch + of_image + 2 * tokens * 4 * 64;
    let mut changes = json!({"maxTokensPerMicroBatch": 4096, "promptsPerStep": 16});
    assert_eq!(activations(changes.clone()), expected(4, 4096));
    changes["roles"] = json!({"critic": {"maxTokensPerMicroBatch": 8192}});
    assert_eq!(activations(changes.clone()), expected(4, 8192));
    // The images of two prompts do not fill a micro-batch.
    changes["promptsPerStep"] = 2.into();
    assert_eq!(activations(changes), expected(4, 1024));
    let casts = 2 * model().num_vision_parameters();
    let narrow = json!({"maxTokensPerMicroBatch": 4096, "precision": "Bf16"});
    assert_eq!(activations(narrow), expected(2, 4096) + casts);
}

#[test]
fn a_trained_or_adapted_tower_is_refused_where_there_is_none() {
    let mut spec = spec();
    for (changes, expected) in [
        (
            json!({"lora": {"vlmLora": "Both"}}),
            "lora.vlmLora: Qwen2 has no vision tower: expected Text, got Both",
        ),
        (
            json!({"visionTower": "Trained"}),
            "visionTower: Qwen2 has no vision tower: expected Frozen, got Trained",
        ),
    ] {
        spec["model"] = changes;
        spec["model"]["path"] = "/models/some".into();
        let job = validate(&manifest(&spec)).unwrap();
        let error = check_model(job.spec(), &super::qwen()).unwrap_err().to_string();
        assert_eq!(error, format!("spec.model.{expected}"));
        assert_eq!(check_model(job.spec(), &model()).err().map(|refusal| refusal.to_string()), None);
    }
}

/// Image tokens count as prompt tokens: in the KV cache, and as patches of the tower.
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
    // Keys and values of 576 additional tokens for each of the 8 prompts. The samples of a group share them.
    let bytes_per_token = 2 * 2 * 64 * 4;
    let more = cache(&long) - cache(&short);
    assert!((8 * 576 * bytes_per_token..8 * 600 * bytes_per_token).contains(&more), "{more}");
}

/// The tower computes on the model's device. Patches of pictures stay in host memory until they are needed.
#[test]
fn a_gpu_holds_the_tower_and_features_but_no_pictures() {
    let mut spec = spec();
    spec["model"] = json!({
        "architecture": {
            "family": "Qwen3Vl", "hiddenSize": 64, "intermediateSize": 96, "numLayers": 2, "numHeads": 4,
            "maxPositionEmbeddings": 4096,
            "vision": {"hiddenSize": 32, "numLayers": 2, "numHeads": 2, "patchSize": 4}
        },
        "tokenizer": {"characters": "0123456789 howmany?"}
    });
    spec["data"] = json!({
        "task": {"kind": "CountingPictures", "pictures": {"cells": 2, "cellPixels": 8, "maxCount": 4}},
        "maxPromptTokens": 64
    });
    spec["rewards"] = json!({"functions": [{"name": "correct", "kind": "Exact"}]});
    spec["workers"] = json!({"device": "Cuda"});
    let job = validate(&manifest(&spec)).unwrap();
    let models = Models { policy: planned_model(&job).unwrap(), reward: Vec::new() };
    let memory = plan(&job, &models).memory.unwrap();
    for name in ["vision tower", "image features"] {
        assert_eq!(place(&memory, Phase::Rollout, name), Some(Place::Device), "{name}");
    }
    assert!(bytes(&memory, Phase::Rollout, "pictures") > 0);
    assert_eq!(place(&memory, Phase::Rollout, "pictures"), Some(Place::Host));
}
