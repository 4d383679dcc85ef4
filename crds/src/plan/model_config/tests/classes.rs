//! Configurations that a class of transformers 5.17 reads otherwise than the classes of other families.

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
    // Without need the field is not written, as it makes transformers load the other class.
    let uniform = parsed(&of_class("MistralForCausalLM", json!({ "sliding_window": 5 })));
    assert_eq!(uniform.layer_windows, [Some(5), Some(5)]);
    assert!(uniform.to_json("float32").get("layer_types").is_none());
}
