//! Tests that configurations are read as they are on disk, and written back.

mod classes;
mod latent_attention;
mod vision_models;

use rlt_api::spec::{ExpertsSpec, ModelFamily};
use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "eos_token_id": [128001, 128008, 128009],
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    })
}

fn qwen2() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "rope_theta": 1000000.0, "tie_word_embeddings": true, "sliding_window": 32768, "max_window_layers": 21,
        "use_sliding_window": false, "eos_token_id": 151645
    })
}

fn with(mut document: Value, field: &str, value: Value) -> Value {
    document[field] = value;
    document
}

fn parsed(document: &Value) -> ModelConfig {
    ModelConfig::from_json(document).unwrap()
}

fn refusal(document: &Value) -> String {
    ModelConfig::from_json(document).unwrap_err().to_string()
}

#[test]
fn counts_the_parameters_of_published_models() {
    assert_eq!(parsed(&llama()).parameter_count().total(), 8_030_261_248, "Llama 3.1 8B");
    assert_eq!(parsed(&qwen2()).parameter_count().total(), 494_032_768, "Qwen2.5 0.5B");
    let gemma = json!({
        "architectures": ["GemmaForCausalLM"], "vocab_size": 256000, "hidden_size": 2048,
        "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256
    });
    assert_eq!(parsed(&gemma).parameter_count().total(), 2_506_172_416, "Gemma 2B");
    let qwen3 = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": true
    });
    assert_eq!(parsed(&qwen3).parameter_count().total(), 596_049_920, "Qwen3 0.6B");
}

fn qwen3_30b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": true
    })
}

#[test]
fn a_mixture_counts_all_experts_and_computes_with_some() {
    let config = parsed(&qwen3_30b_a3b());
    assert_eq!(config.parameter_count().total(), 30_532_122_624, "Qwen3 30B A3B");
    let outside = 2 * 151_936 * 2048;
    assert_eq!((config.active_matrices_of_layers() + outside) / 1_000_000, 3_352, "with embedding and head");
    // One token reads only its own experts, many tokens read all of them.
    let read = |num_tokens| config.matrices_read_by(num_tokens).round() as u64;
    assert_eq!(read(1.0), config.active_matrices_of_layers());
    assert!(read(4.0) > 2 * read(1.0) && read(1e4) == config.matrices_of_layers());
    let first_dense = with(qwen3_30b_a3b(), "mlp_only_layers", json!([0]));
    let layers = parsed(&first_dense);
    assert!(layers.experts_of(0).is_none() && layers.experts_of(1).is_some());
    let refused = refusal(&with(qwen3_30b_a3b(), "num_experts_per_tok", json!(129)));
    assert!(
        refused.contains("num_experts_per_tok") && refused.contains("at most num_experts 128"),
        "{refused}"
    );
    assert!(refusal(&with(first_dense, "mlp_only_layers", json!([48]))).contains("mlp_only_layers"));
}

#[test]
fn the_number_of_experts_is_read_by_the_names_that_transformers_maps() {
    let read = |class: &str, own: &str, alias: &str| {
        let sizes = with(with(qwen3_30b_a3b(), "architectures", json!([class])), "sliding_window", json!(8));
        let mut sizes = with(sizes, "rope_parameters", json!({"rope_type": "default"}));
        sizes.as_object_mut().unwrap().remove("num_experts");
        let both = with(with(sizes, own, json!(64)), alias, json!(32));
        parsed(&both).experts.map(|experts| experts.num_experts)
    };
    for class in ["GptOssForCausalLM", "MixtralForCausalLM"] {
        assert_eq!(read(class, "num_local_experts", "num_experts"), Some(32), "{class}");
    }
    assert_eq!(read("Qwen3MoeForCausalLM", "num_experts", "num_local_experts"), Some(32));
    assert_eq!(read("Qwen2MoeForCausalLM", "num_experts", "num_local_experts"), Some(64));
}

#[test]
fn published_models_of_newer_families_are_as_large_as_they_are() {
    // The shapes of each model's published config.json.
    let gemma2 = json!({
        "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256000, "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256
    });
    assert_eq!(parsed(&gemma2).parameter_count().total(), 2_614_341_888, "Gemma 2 2B");
    let command = json!({
        "architectures": ["CohereForCausalLM"], "vocab_size": 256000, "hidden_size": 8192,
        "intermediate_size": 22528, "num_hidden_layers": 40, "num_attention_heads": 64
    });
    assert_eq!(parsed(&command).parameter_count().total(), 34_980_831_232, "Command R");
    let yarn = json!({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096});
    let gpt_oss = json!({
        "architectures": ["GptOssForCausalLM"], "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "num_local_experts": 32, "rope_scaling": yarn, "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"}
    });
    assert_eq!(parsed(&gpt_oss).parameter_count().total(), 20_914_757_184, "gpt-oss 20B");
    assert!(refusal(&with(gpt_oss.clone(), "swiglu_limit", json!(5.0))).contains("swiglu_limit"));
    let silent = with(gpt_oss, "rope_scaling", Value::Null);
    assert!(refusal(&silent).contains("rope_parameters"));
}

/// The `config.json` of google/gemma-3-4b-it; the number of parameters is that of the text model in its
/// files.
#[test]
fn gemma_3_with_a_tower_is_read_as_its_text_model() {
    let text = json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
    });
    let document = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
        "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}
    });
    let config = parsed(&document);
    assert!(ModelConfig::leaves_tower_out(&document) && !ModelConfig::leaves_tower_out(&llama()));
    assert_eq!(config.parameter_count().total(), 3_880_263_168);
    assert_eq!(
        (config.family, config.eos_token_ids.as_slice(), config.vision.is_none()),
        (Family::Gemma3, &[1, 106][..], true)
    );
    assert!(matches!(config.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 }));
    assert!(matches!(config.ropes[1].scaling, RopeScaling::None));
    let other = with(document, "configuration_files", json!(["config.5.0.json"]));
    assert!(refusal(&other).contains("`configuration_files`"));
}

#[test]
fn the_count_is_the_sum_over_the_tensor_list() {
    let mixed = with(qwen3_30b_a3b(), "decoder_sparse_step", json!(2));
    for document in [llama(), with(llama(), "attention_bias", json!(true)), qwen2(), mixed] {
        let config = parsed(&document);
        let sum: u64 =
            config.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(config.parameter_count().total(), sum);
    }
}

#[test]
fn reads_rope_in_the_form_of_transformers_4_and_5() {
    let old = parsed(&llama());
    let mut new = llama();
    let mut rope = new["rope_scaling"].clone();
    rope["rope_theta"] = json!(500000.0);
    new.as_object_mut().unwrap().retain(|key, _| !key.starts_with("rope_"));
    assert_eq!(parsed(&with(new, "rope_parameters", rope)), old);
    assert_eq!(old.ropes[0].theta, 500_000.0);
    assert!(matches!(old.ropes[0].scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
}

#[test]
fn yarn_sharpens_attention_as_the_paper_says_unless_told_otherwise() {
    let factor = |fields: Value| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192});
        rope.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parsed(&with(llama(), "rope_scaling", rope)).ropes[0].scaling.attention_factor()
    };
    assert_eq!(factor(json!({})), 0.1 * 4f64.ln() + 1.0);
    assert_eq!(factor(json!({"attention_factor": 1.5})), 1.5);
    assert_eq!(factor(json!({"mscale": 0.707, "mscale_all_dim": 0.707})), 1.0);
    assert_eq!(parsed(&llama()).ropes[0].scaling.attention_factor(), 1.0);
}

/// transformers 5.17 prefers a top-level length to one within `rope_scaling`, and falls back to
/// `max_position_embeddings`.
#[test]
fn a_top_level_original_length_has_priority_over_that_of_the_rope_fields() {
    let original = |scaling: Value, beside: Value| {
        let document =
            with(with(llama(), "rope_scaling", scaling), "original_max_position_embeddings", beside);
        match parsed(&document).ropes[0].scaling {
            RopeScaling::Yarn { original_max_position_embeddings, .. }
            | RopeScaling::Llama3 { original_max_position_embeddings, .. } => {
                original_max_position_embeddings
            }
            ref other => panic!("{other:?}"),
        }
    };
    let yarn = json!({"type": "yarn", "factor": 4.0});
    let llama3 =
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    for scaling in [yarn, llama3] {
        let within = with(scaling.clone(), "original_max_position_embeddings", json!(512));
        assert_eq!(original(within.clone(), json!(256)), 256.0);
        assert_eq!(original(within, Value::Null), 512.0);
        assert_eq!(original(scaling.clone(), json!(256)), 256.0);
        let longest = parsed(&llama()).max_position_embeddings as f64;
        assert_eq!(original(scaling, Value::Null), longest);
    }
}

/// Phi-3-mini-128k with two pairs of dims a head.
fn phi3(scaling: Value) -> Value {
    json!({
        "architectures": ["Phi3ForCausalLM"], "vocab_size": 32064, "hidden_size": 16, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 131072,
        "rope_scaling": scaling
    })
}

/// `Phi3Config` of transformers 5.17 is the reference; its top-level length has a default.
#[test]
fn phi_3_reads_longrope_under_all_its_names_and_no_other_scaling() {
    let factors = json!({"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "factor": 32.0});
    let original = |document: &Value| match parsed(document).ropes[0].scaling {
        RopeScaling::LongRope { original_max_position_embeddings, .. } => original_max_position_embeddings,
        ref other => panic!("{other:?}"),
    };
    for kind in ["longrope", "su", "yarn"] {
        let scaling = with(factors.clone(), "type", json!(kind));
        let scaling = with(scaling, "original_max_position_embeddings", json!(8192));
        assert_eq!(original(&phi3(scaling.clone())), 4096.0, "{kind}");
        let document = with(phi3(scaling), "original_max_position_embeddings", json!(2048));
        assert_eq!(original(&document), 2048.0, "{kind}");
        assert_eq!(parsed(&parsed(&document).to_json("float32")), parsed(&document));
    }
    let elsewhere = refusal(&with(llama(), "rope_scaling", with(factors, "type", json!("su"))));
    assert!(elsewhere.contains("\"su\" is not supported"), "{elsewhere}");
    let linear = refusal(&phi3(json!({"type": "linear", "factor": 2.0})));
    assert!(linear.ends_with("\"linear\" is not supported, supported: default, longrope"), "{linear}");
}

#[test]
fn heads_are_rotated_in_part_only_in_families_that_read_the_fraction() {
    let refused = refusal(&with(llama(), "partial_rotary_factor", json!(0.5)));
    assert!(refused.contains("`partial_rotary_factor`: 0.5 is not supported, supported: 1.0"), "{refused}");
    let within = with(llama()["rope_scaling"].clone(), "partial_rotary_factor", json!(0.5));
    let refused = refusal(&with(llama(), "rope_scaling", within));
    assert!(refused.contains("`rope_scaling.partial_rotary_factor`"), "{refused}");
    assert_eq!(parsed(&with(llama(), "partial_rotary_factor", json!(1.0))), parsed(&llama()));
    let scaling = json!({"type": "default", "partial_rotary_factor": 0.5});
    assert_eq!(parsed(&phi3(scaling)).rotary_dim, 2);
}

#[test]
fn unknown_parts_of_a_language_model_within_a_larger_one_are_named() {
    let document = json!({
        "architectures": ["NewForConditionalGeneration"],
        "text_config": {"linear_num_value_heads": 4, "layer_types": ["linear_attention"]}
    });
    let refused = refusal(&document);
    for part in ["gated delta nets", "linear_attention"] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn refuses_a_class_that_contradicts_the_model_type() {
    let refused = refusal(&with(llama(), "model_type", json!("qwen2")));
    assert_eq!(
        refused,
        "model configuration: field `model_type`: expected \"llama\" with LlamaForCausalLM, got \"qwen2\""
    );
}

#[test]
fn families_keep_their_own_defaults() {
    let sizes = json!({
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2
    });
    let of = |class: &str| parsed(&with(sizes.clone(), "architectures", json!([class])));
    let gemma = of("GemmaForCausalLM");
    assert_eq!((gemma.head_dim, gemma.tie_word_embeddings, gemma.norm_offset), (256, true, 1.0));
    assert_eq!(gemma.hidden_activation, HiddenActivation::GeluTanh);
    assert_eq!(gemma.eos_token_ids, [1]);
    assert_eq!(of("MistralForCausalLM").layer_windows, [Some(4096), Some(4096)]);
    let qwen2 = of("Qwen2ForCausalLM");
    assert!(
        qwen2.qkv_bias && !qwen2.output_bias && !qwen2.tie_word_embeddings && qwen2.eos_token_ids.is_empty()
    );
    let qwen3 = of("Qwen3ForCausalLM");
    assert!(qwen3.qk_norm == QkNorm::Head && !qwen3.qkv_bias && qwen3.head_dim == 128);
}

#[test]
fn qwen_slides_only_from_max_window_layers_on() {
    assert!(parsed(&qwen2()).layer_windows.iter().all(Option::is_none));
    let sliding = parsed(&with(qwen2(), "use_sliding_window", json!(true)));
    assert_eq!(sliding.layer_windows[20], None);
    assert_eq!(sliding.layer_windows[21], Some(32768));
}

#[test]
fn refuses_what_it_cannot_run_by_name() {
    let unknown = refusal(&with(llama(), "architectures", json!(["OPTForCausalLM"])));
    assert!(unknown.contains("OPTForCausalLM") && unknown.contains("Qwen3ForCausalLM"), "{unknown}");
    let hybrid = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "hidden_act": "relu2", "linear_num_value_heads": 32,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"]
    });
    let unknown = refusal(&hybrid);
    let parts = "unknown architecture \"Qwen3_5ForCausalLM\"; not known of it: gated delta nets \
                 (`linear_num_value_heads`), the activation \"relu2\" (`hidden_act`), layers of \
                 \"linear_attention\" (`layer_types`); known architectures are LlamaForCausalLM, ";
    assert!(unknown.contains(parts), "{unknown}");
    let dynamic = refusal(&with(llama(), "rope_scaling", json!({"type": "dynamic", "factor": 2.0})));
    assert_eq!(
        dynamic,
        "model configuration: field `rope_scaling.type`: \"dynamic\" is not supported, \
         supported: default, linear, llama3, yarn, longrope"
    );
    assert!(
        refusal(&with(llama(), "quantization_config", json!({"bits": 4}))).contains("quantization_config")
    );
    assert!(refusal(&with(llama(), "hidden_act", json!("relu2"))).contains("relu2"));
    assert!(refusal(&with(llama(), "partial_rotary_factor", json!(1.5))).contains("partial_rotary_factor"));
}

#[test]
fn fields_of_newer_releases_that_change_values_are_refused_unless_they_are_off() {
    for (field, value) in [
        ("use_bidirectional_attention", json!(true)),
        ("is_encoder_decoder", json!(true)),
        ("per_layer_config", json!({"0": {"sliding_window": 8}})),
        ("swiglu_alpha", json!(1.0)),
        ("is_causal", json!(false)),
        ("num_kv_shared_layers", json!(2)),
    ] {
        let refused = refusal(&with(llama(), field, value.clone()));
        assert!(refused.contains(&format!("field `{field}`: {value} is not supported")), "{refused}");
    }
    let off = [("per_layer_config", Value::Null), ("swiglu_alpha", json!(1.702)), ("is_causal", json!(true))];
    for (field, value) in off {
        assert_eq!(parsed(&with(llama(), field, value)), parsed(&llama()));
    }
}

#[test]
fn parts_without_kernels_for_gpus_are_known_by_name() {
    use rlt_api::conflicts::{Conflict, Fact, conflict_of};
    let part = |model: &ModelConfig| conflict_of(Fact::OnGpu, &model.facts()).map(Conflict::part);
    let model = parsed(&qwen2());
    assert_eq!(part(&model), None);
    let capped = ModelConfig { logit_softcap: Some(30.0), ..model };
    assert_eq!(part(&capped), Some("softcapped logits"));
}

#[test]
fn names_field_expected_and_got() {
    assert_eq!(
        refusal(&with(llama(), "hidden_size", json!("4096"))),
        "model configuration: field `hidden_size`: expected an integer from 1 to 16777216, got \"4096\""
    );
    assert_eq!(
        refusal(&with(llama(), "num_key_value_heads", json!(5))),
        "model configuration: field `num_key_value_heads`: expected a divisor of num_attention_heads 32, got 5"
    );
    let mut without = llama();
    without.as_object_mut().unwrap().remove("vocab_size");
    assert_eq!(refusal(&without), "model configuration: field `vocab_size` is missing");
    assert_eq!(refusal(&json!([])), "model configuration: expected a JSON object, got a list");
}

#[test]
fn sizes_that_no_machine_holds_are_refused_before_memory_is_taken_for_them() {
    let refused = |field: &str, size: u64| refusal(&with(llama(), field, json!(size)));
    assert_eq!(
        refused("num_hidden_layers", 1 << 31),
        "model configuration: field `num_hidden_layers`: expected an integer from 1 to 10000, got 2147483648"
    );
    let too_wide = "expected an integer from 1 to 16777216, got 16777217";
    assert!(refused("intermediate_size", (1 << 24) + 1).ends_with(too_wide));
    assert!(refused("max_position_embeddings", 1 << 50).contains("from 1 to 1099511627776"));
    let both = with(with(llama(), "hidden_size", json!(1 << 24)), "intermediate_size", json!(1 << 24));
    let refusal = refusal(&both);
    assert!(refusal.contains("at most 1e15 parameters together, got 32 layers of"), "{refusal}");
}

#[test]
fn a_written_configuration_reads_back_as_the_same_model() {
    let mistral = json!({
        "architectures": ["MistralForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "sliding_window": null, "rope_scaling": {"type": "linear", "factor": 2.5}
    });
    let sliding = with(qwen2(), "use_sliding_window", json!(true));
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let sliding = with(sliding, "rope_scaling", yarn);
    let biased = with(with(llama(), "attention_bias", json!(true)), "mlp_bias", json!(true));
    for document in [llama(), biased, qwen2(), sliding, mistral, qwen3_30b_a3b()] {
        let config = parsed(&document);
        assert_eq!(parsed(&config.to_json("float32")), config);
    }
}

#[test]
fn generation_config_decides_the_ending_tokens() {
    let config = parsed(&qwen2());
    let kept = config.clone().with_generation_config(&json!({"temperature": 0.7})).unwrap();
    assert_eq!(kept.eos_token_ids, [151645]);
    let replaced = config.with_generation_config(&json!({"eos_token_id": [151645, 151643]})).unwrap();
    assert_eq!(replaced.eos_token_ids, [151645, 151643]);
}

/// The `generation_config.json` of Qwen/Qwen2.5-7B-Instruct, whose padding token is not in its `config.json`.
#[test]
fn settings_of_generation_are_written_as_they_were_read() {
    let document = json!({
        "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
        "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
        "transformers_version": "4.37.0"
    });
    let config = parsed(&qwen2()).with_generation_config(&document).unwrap();
    let written = config.generation_json();
    let fields = document.as_object().unwrap().iter();
    for (field, value) in fields.filter(|(field, _)| *field != "transformers_version") {
        assert_eq!(written[field], *value, "{field}");
    }
    assert!(written.get("transformers_version").is_none());
    let again = parsed(&qwen2()).with_generation_config(&written).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_built_model_writes_a_configuration_that_reads_back() {
    let spec = |family: &str| -> ArchitectureSpec {
        serde_json::from_value(json!({
            "family": family, "hiddenSize": 48, "intermediateSize": 96, "numLayers": 2, "numHeads": 4,
            "numKvHeads": 2
        }))
        .unwrap()
    };
    let dense = Family::all().filter(|family| !family.has_vision()).map(|family| format!("{family:?}"));
    let mixtures = ["Mixtral", "GptOss", "Qwen2Moe", "Qwen3Moe", "DeepseekV2", "DeepseekV3"];
    // The written configuration of these families has a second embedding, for layers with a window, which a
    // newly initialized model has not.
    let by_window = ["Gemma3", "Olmo3"];
    let is_read_back = |family: &String| ![&mixtures[..], &by_window].concat().contains(&family.as_str());
    for family in &dense.filter(is_read_back).collect::<Vec<_>>() {
        let config = ModelConfig::from_architecture(&spec(family), 17, &[3], None).unwrap();
        assert_eq!(parsed(&config.to_json("float32")), config, "{family}");
    }
    for family in mixtures {
        let mut mixture = spec(family);
        if family.starts_with("Deepseek") {
            // All heads share keys from one latent.
            assert!(ModelConfig::from_architecture(&mixture, 17, &[3], None).is_err());
            mixture.num_kv_heads = None;
        }
        let made = |spec: &ArchitectureSpec| ModelConfig::from_architecture(spec, 17, &[3], None);
        assert!(made(&mixture).unwrap_err().to_string().contains("`experts`"), "{family}");
        mixture.experts = Some(ExpertsSpec { count: 4, per_token: 5 });
        assert!(made(&mixture).unwrap_err().to_string().contains("perToken 5 of 4"), "{family}");
        mixture.experts = Some(ExpertsSpec { count: 4, per_token: 3 });
        let config = made(&mixture).unwrap();
        assert_eq!(parsed(&config.to_json("float32")), config, "{family}");
        let dense = ArchitectureSpec { family: ModelFamily::Llama, ..mixture };
        assert!(made(&dense).unwrap_err().to_string().contains("`experts`"), "{family}");
    }
    let mut sliding = ModelConfig::from_architecture(&spec("Qwen3"), 17, &[3], None).unwrap();
    sliding.layer_windows = vec![None, Some(8)];
    assert_eq!(parsed(&sliding.to_json("float32")), sliding);
}
