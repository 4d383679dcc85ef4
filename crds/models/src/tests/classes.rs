//! Tests of fields that a class of transformers 5.17 reads otherwise than the classes of other families.

use super::*;

/// A small model of a class with the given fields.
fn of_class(class: &str, fields: Value) -> Value {
    let mut document = json!({
        "architectures": [class], "vocab_size": 200_000, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8
    });
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document
}

#[test]
fn gemma_2_and_3_read_the_activation_from_hidden_activation_and_other_families_from_hidden_act() {
    let activation =
        |class: &str, field: &str| parsed(&of_class(class, json!({ field: "gelu" }))).hidden_activation;
    for class in ["Gemma2ForCausalLM", "Gemma3ForCausalLM"] {
        assert_eq!(activation(class, "hidden_activation"), HiddenActivation::Gelu, "{class}");
        assert_eq!(activation(class, "hidden_act"), HiddenActivation::GeluTanh, "{class}");
    }
    assert_eq!(activation("GemmaForCausalLM", "hidden_act"), HiddenActivation::Gelu);
    assert_eq!(activation("GemmaForCausalLM", "hidden_activation"), HiddenActivation::GeluTanh);
    assert_eq!(activation("LlamaForCausalLM", "hidden_activation"), HiddenActivation::Silu);
}

#[test]
fn both_classes_of_glm_4_have_ending_tokens_if_the_field_is_absent_or_null() {
    for class in ["GlmForCausalLM", "Glm4ForCausalLM"] {
        for fields in [json!({}), json!({ "eos_token_id": null })] {
            let ids = parsed(&of_class(class, fields)).eos_token_ids;
            assert_eq!(ids, [151_329, 151_336, 151_338], "{class}");
        }
        assert_eq!(parsed(&of_class(class, json!({ "eos_token_id": 7 }))).eos_token_ids, [7]);
    }
}

#[test]
fn a_window_is_refused_in_a_family_without_windows_unless_it_holds_every_sequence() {
    let of = |class: &str, window: Value, is_used: Value| {
        let fields = json!({"sliding_window": window, "use_sliding_window": is_used});
        ModelConfig::from_json(&with(of_class(class, fields), "max_position_embeddings", json!(64)))
    };
    for class in ["LlamaForCausalLM", "GraniteForCausalLM", "Olmo2ForCausalLM"] {
        let refused = of(class, json!(8), Value::Null).unwrap_err().to_string();
        assert!(refused.contains("field `sliding_window`: 8 is not supported"), "{refused}");
        for (window, is_used) in
            [(json!(64), json!(true)), (Value::Null, json!(true)), (json!(8), json!(false))]
        {
            assert_eq!(of(class, window, is_used).unwrap().layer_windows, [None, None]);
        }
    }
    assert_eq!(of("Qwen2ForCausalLM", json!(8), json!(false)).unwrap().layer_windows, [None, None]);
}

#[test]
fn a_mistral_with_layer_types_has_windows_by_layer_as_a_ministral() {
    let types = json!({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5});
    let mistral = parsed(&of_class("MistralForCausalLM", types.clone()));
    assert_eq!(mistral.layer_windows, [Some(5), None]);
    assert_eq!(mistral.layer_windows, parsed(&of_class("MinistralForCausalLM", types)).layer_windows);
    assert_eq!(parsed(&mistral.to_json("float32")), mistral);
    // The field is written only where it is needed, because it makes transformers load the other class.
    let uniform = parsed(&of_class("MistralForCausalLM", json!({ "sliding_window": 5 })));
    assert_eq!(uniform.layer_windows, [Some(5), Some(5)]);
    assert!(uniform.to_json("float32").get("layer_types").is_none());
}

/// `standardize_rope_params` and `convert_rope_params_to_dict` of transformers 5.17.
#[test]
fn embeddings_by_layer_read_a_length_within_their_own_fields_alone() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    let within = with(yarn.clone(), "original_max_position_embeddings", json!(64));
    let original = |config: &ModelConfig| match config.ropes[0].scaling {
        RopeScaling::Yarn { original_max_position_embeddings, .. } => original_max_position_embeddings,
        ref other => panic!("{other:?}"),
    };
    for class in ["Gemma3ForCausalLM", "Olmo3ForCausalLM"] {
        let top = json!({ "max_position_embeddings": 512, "original_max_position_embeddings": 128 });
        let top = of_class(class, top);
        for (yarn, expected) in [(&yarn, 512.0), (&within, 64.0)] {
            let old = parsed(&with(top.clone(), "rope_scaling", yarn.clone()));
            let parameters = json!({ "full_attention": yarn, "sliding_attention": {"rope_type": "default"} });
            let new = parsed(&with(top.clone(), "rope_parameters", parameters));
            assert_eq!((original(&old), original(&new)), (expected, expected), "{class}");
            assert!(matches!(new.ropes[1].scaling, RopeScaling::None), "{class}");
        }
        let part = json!({ "full_attention": {"partial_rotary_factor": 0.5} });
        let refused = refusal(&with(top, "rope_parameters", part));
        assert!(refused.contains("partial_rotary_factor"), "{refused}");
    }
}

/// OLMo 3 pops `rope_theta` for layers with full attention, so those with a window keep the default.
#[test]
fn a_base_wavelength_at_the_top_level_is_that_of_full_attention() {
    let thetas = |class: &str, fields: Value| {
        let config = parsed(&of_class(class, fields));
        [config.ropes[0].theta, config.ropes[1].theta]
    };
    assert_eq!(thetas("Olmo3ForCausalLM", json!({ "rope_theta": 20_000.0 })), [20_000.0, 500_000.0]);
    let gemma = json!({ "rope_theta": 20_000.0, "rope_local_base_freq": 30_000.0 });
    assert_eq!(thetas("Gemma3ForCausalLM", gemma), [20_000.0, 30_000.0]);
    let both = json!({
        "full_attention": {"rope_theta": 2000.0}, "sliding_attention": {"rope_theta": 3000.0}
    });
    for class in ["Olmo3ForCausalLM", "Gemma3ForCausalLM"] {
        assert_eq!(thetas(class, json!({ "rope_parameters": both, "rope_theta": 9.0 })), [2000.0, 3000.0]);
    }
}
