//! Tests of configurations of vision-language models, which are read and written in both layouts.

use rlt_api::spec::ArchitectureSpec;
use serde_json::{Value, json};

use super::super::*;

/// Qwen2.5-VL-3B-Instruct, fields of the text model outside.
fn published() -> Value {
    json!({
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "max_window_layers": 70, "sliding_window": 32768, "use_sliding_window": false, "tie_word_embeddings": true,
        "eos_token_id": 151645, "image_token_id": 151655, "video_token_id": 151656,
        "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2,
            "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2, "temporal_patch_size": 2
        }
    })
}

fn parsed(document: &Value) -> ModelConfig {
    ModelConfig::from_json(document).unwrap()
}

#[test]
fn a_published_model_has_the_parameters_that_its_tower_has() {
    let config = parsed(&published());
    let vision = config.vision.clone().unwrap();
    assert_eq!(
        (vision.blocks, vision.window_tokens(), vision.rope_sections),
        (VisionBlocks::Gated, Some(4), [16, 24, 24])
    );
    assert!(vision.sees_all(7) && !vision.sees_all(8));
    assert_eq!(vision.image_token, 151_655);
    // 3 754 622 976 parameters of the model on the hub.
    assert_eq!(config.num_vision_parameters() + config.parameter_count().total(), 3_754_622_976);
}

#[test]
fn both_layouts_are_one_model_and_what_is_written_is_read_again() {
    let flat = published();
    let config = parsed(&flat);
    let written = config.to_json("bfloat16");
    assert_eq!(written["vision_config"], flat["vision_config"]);
    assert_eq!(written["text_config"]["model_type"], "qwen2_5_vl_text");
    assert_eq!(written["architectures"], flat["architectures"]);
    assert_eq!(parsed(&written), config);
}

/// The defaults of `Qwen2_5_VLTextConfig`.
#[test]
fn absent_fields_of_qwen2_5_vl_have_the_defaults_of_its_own_text_model() {
    let mut document = published();
    for field in ["eos_token_id", "max_window_layers", "tie_word_embeddings"] {
        document.as_object_mut().unwrap().remove(field);
    }
    document["use_sliding_window"] = true.into();
    let config = parsed(&document);
    assert_eq!((config.bos_token_id, config.eos_token_ids.as_slice()), (Some(151_643), &[151_645][..]));
    // All 36 layers are before the 80th.
    assert_eq!(config.layer_windows, [None; 36]);
    assert!(!config.tie_word_embeddings);
}

#[test]
fn a_head_that_either_level_ties_is_tied_before_qwen3_vl() {
    let is_tied = |published: &Value, outer: Option<bool>, inner: bool| {
        let mut document = parsed(published).to_json("bfloat16");
        let fields = document.as_object_mut().unwrap();
        fields.remove("tie_word_embeddings");
        fields.extend(outer.map(|outer| ("tie_word_embeddings".to_owned(), outer.into())));
        document["text_config"]["tie_word_embeddings"] = inner.into();
        parsed(&document).tie_word_embeddings
    };
    for (outer, inner) in [(None, true), (Some(false), true), (Some(true), false), (Some(true), true)] {
        assert!(is_tied(&published(), outer, inner), "{outer:?} {inner}");
    }
    assert!(!is_tied(&published(), None, false) && !is_tied(&published(), Some(false), false));
    assert!(
        !is_tied(&published_qwen3(), Some(false), true) && is_tied(&published_qwen3(), Some(true), false)
    );
}

#[test]
fn fields_that_would_change_values_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Value), named: &str| {
        let mut document = published();
        change(&mut document);
        let error = ModelConfig::from_json(&document).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    };
    refused(
        &|document| document["rope_scaling"]["mrope_section"] = json!([16, 24, 23]),
        "`rope_scaling.mrope_section`",
    );
    refused(
        &|document| document["vision_config"]["hidden_act"] = "gelu".into(),
        "`vision_config.hidden_act`",
    );
    refused(
        &|document| document["vision_config"]["out_hidden_size"] = 1024.into(),
        "`vision_config.out_hidden_size`",
    );
    refused(
        &|document| document["vision_config"]["rope_parameters"] = json!({"rope_theta": 5000.0}),
        "`rope_parameters.rope_theta`",
    );
    refused(&|document| document["vision_config"]["rope_theta"] = 5000.into(), "`vision_config.rope_theta`");
    refused(
        &|document| document["vision_config"]["rope_scaling"] = json!({"type": "linear", "factor": 2.0}),
        "`rope_scaling.type`",
    );
    refused(&|document| document["vision_config"]["head_dim"] = 64.into(), "`vision_config.head_dim`");
    refused(&|document| document["image_token_id"] = 151_936.into(), "`image_token_id`");
    refused(&|document| document["quantization_config"] = json!({"bits": 4}), "`quantization_config`");
    refused(&|document| drop(document.as_object_mut().unwrap().remove("vision_config")), "`vision_config`");
}

/// A small model as a manifest describes it.
fn described(family: &str) -> ArchitectureSpec {
    serde_json::from_value(json!({
        "family": family, "hiddenSize": 48, "intermediateSize": 96, "numLayers": 2, "numHeads": 2,
        "vision": {"hiddenSize": 32, "numLayers": 9, "numHeads": 4, "patchSize": 4}
    }))
    .unwrap()
}

#[test]
fn a_described_model_writes_a_configuration_that_reads_back() {
    for (family, windows) in [("Qwen2Vl", None), ("Qwen25Vl", Some(4)), ("Qwen3Vl", None)] {
        let tokens = VisionTokens::at_the_end_of(40);
        let config = ModelConfig::from_architecture(&described(family), 40, &[2], Some(tokens)).unwrap();
        let vision = config.vision.clone().unwrap();
        assert_eq!((vision.hidden_size, vision.depth, vision.num_heads, vision.patch_size), (32, 9, 4, 4));
        assert_eq!((vision.intermediate_size, vision.window_tokens()), (128, windows));
        assert_eq!(vision.rope_sections.iter().sum::<usize>(), 12);
        let tokens =
            [vision.image_token, vision.video_token, vision.vision_start_token, vision.vision_end_token];
        assert_eq!(tokens, [36, 37, 38, 39]);
        assert_eq!(parsed(&config.to_json("float32")), config, "{family}");
        let whole: Vec<usize> = (0..9).filter(|block| vision.sees_all(*block)).collect();
        assert_eq!(whole, if windows.is_some() { vec![7, 8] } else { (0..9).collect() });
        // A tower adds features to at most as many layers as the text model has.
        let added: &[usize] = if family == "Qwen3Vl" { &[2, 5] } else { &[] };
        assert_eq!(vision.deepstack_blocks, added);
    }
}

#[test]
fn a_described_tower_that_does_not_fit_is_refused_by_its_field() {
    let tokens = Some(VisionTokens::at_the_end_of(40));
    let refusal = |spec: &ArchitectureSpec, tokens| {
        ModelConfig::from_architecture(spec, 40, &[2], tokens).unwrap_err().to_string()
    };
    let spec = described("Qwen2Vl");
    let error = refusal(&ArchitectureSpec { vision: None, ..spec.clone() }, tokens);
    assert!(error.contains("field `vision`: expected a tower with the family Qwen2Vl"), "{error}");
    let error = refusal(&ArchitectureSpec { family: Family::Llama, ..spec.clone() }, tokens);
    assert!(error.contains("field `vision`: expected nothing with the family Llama"), "{error}");
    let error = refusal(&spec, None);
    assert!(error.contains("<|image_pad|>"), "{error}");
    let mut narrow = spec;
    narrow.vision.as_mut().unwrap().hidden_size = 24;
    let error = refusal(&narrow, tokens);
    assert!(error.contains("`vision_config.num_heads`"), "{error}");
}

/// The published configuration of Qwen3-VL-4B-Instruct.
fn published_qwen3() -> Value {
    json!({
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653, "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "rope_theta": 5000000,
            "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}
        },
        "vision_config": {
            "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1024, "in_channels": 3, "intermediate_size": 4096, "num_heads": 16,
            "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16, "spatial_merge_size": 2,
            "temporal_patch_size": 2
        }
    })
}

#[test]
fn qwen3_vl_turns_pairs_by_axes_in_turn_and_adds_features_after_three_layers() {
    let config = parsed(&published_qwen3());
    let vision = config.vision.clone().unwrap();
    assert_eq!((config.qk_norm, config.head_dim, config.tie_word_embeddings), (QkNorm::Head, 128, true));
    assert_eq!((vision.position_side, vision.features_per_token()), (Some(48), 4));
    let axes = vision.rope_axes();
    assert_eq!(axes[..6], [0, 1, 2, 0, 1, 2]);
    assert_eq!(axes[57..], [0, 1, 2, 0, 0, 0, 0], "height and width end with their 20 pairs");
    assert_eq!(parsed(&config.to_json("bfloat16")), config);
    let blocks = 24 * (4 * 1024 * 1024 + 4 * 1024 + 2 * 4096 * 1024 + 4096 + 1024 + 4 * 1024);
    let merger = |norm: u64| 2 * norm + 4096 * 4096 + 4096 + 2560 * 4096 + 2560;
    let embeddings = 1024 * 1536 + 1024 + 2304 * 1024;
    assert_eq!(config.num_vision_parameters(), blocks + merger(1024) + 3 * merger(4096) + embeddings);
}

#[test]
fn a_qwen3_vl_that_would_compute_something_else_is_refused_by_its_field() {
    let refused = |change: &dyn Fn(&mut Value), field: &str| {
        let mut document = published_qwen3();
        change(&mut document);
        let error = ModelConfig::from_json(&document).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    };
    refused(
        &|document| document["text_config"]["rope_scaling"]["mrope_interleaved"] = false.into(),
        "mrope_interleaved",
    );
    let tower = |field: &'static str, value: Value| {
        refused(&move |document| document["vision_config"][field] = value.clone(), field);
    };
    tower("num_position_embeddings", 2300.into());
    tower("deepstack_visual_indexes", json!([5, 24]));
    tower("deepstack_visual_indexes", json!([11, 5]));
    tower("deepstack_visual_indexes", json!((0..24).chain(0..24).collect::<Vec<_>>()));
    tower("hidden_act", "gelu".into());
    tower("out_hidden_size", 2048.into());
}
