//! Tests of latent attention and its routing, with the configurations of published models.

use serde_json::{Value, json};

use super::super::*;

fn parsed(document: &Value) -> ModelConfig {
    ModelConfig::from_json(document).unwrap()
}

fn refusal(document: &Value) -> String {
    ModelConfig::from_json(document).unwrap_err().to_string()
}

fn with(mut document: Value, field: &str, value: Value) -> Value {
    document[field] = value;
    document
}

/// The published `config.json` of DeepSeek-V3, in the fields that shape the model.
fn deepseek_v3() -> Value {
    serde_json::from_str(include_str!("../../tests/fixtures/deepseek_v3.json")).unwrap()
}

fn deepseek_v2_lite() -> Value {
    json!({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 102400,
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
        "kv_lora_rank": 512, "q_lora_rank": null, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "norm_topk_prob": false
    })
}

/// Returns the number of parameters by which a token is multiplied, embedding and head included.
fn active(config: &ModelConfig) -> u64 {
    config.active_matrices_of_layers() + 2 * (config.vocab_size * config.hidden_size) as u64
}

#[test]
fn published_models_have_the_numbers_of_parameters_that_are_published() {
    let v3 = parsed(&deepseek_v3());
    assert_eq!(v3.parameter_count().total(), 671_026_419_200, "DeepSeek-V3");
    assert_eq!(active(&v3) / 1_000_000, 37_551, "37 B active");
    let lite = parsed(&deepseek_v2_lite());
    assert_eq!(lite.parameter_count().total(), 15_706_484_224, "DeepSeek-V2-Lite");
    assert_eq!(active(&lite) / 1_000_000, 2_661, "of them active");
    for config in [v3, lite] {
        let sum: u64 =
            config.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(config.parameter_count().total(), sum);
    }
}

#[test]
fn a_cache_keeps_latents_and_turned_keys_alone() {
    let v3 = parsed(&deepseek_v3());
    assert_eq!(v3.cached_numbers(), 512 + 64);
    assert_eq!((v3.head_dim, v3.rope_head_dim(), v3.rotary_dim), (192, 64, 64));
    // A tensor-parallel rank holds a shard of the heads and the full latent.
    let shard = v3.tp_sharded(8);
    assert_eq!(shard.cached_numbers(), 576);
    for layer_idx in [0, 3] {
        assert_eq!(v3.matrices_of_layer_of_rank(layer_idx, 8), shard.matrices_of_layer(layer_idx));
    }
    let yarn: f64 = 0.1 * 40_f64.ln() + 1.0;
    assert!((v3.attention_scale - 192_f64.powf(-0.5) * yarn * yarn).abs() < 1e-12);
    assert_eq!(parsed(&deepseek_v2_lite()).attention_scale, 192_f64.powf(-0.5));
}

#[test]
fn configurations_are_written_as_they_were_read() {
    let grouped = with(deepseek_v2_lite(), "topk_method", json!("group_limited_greedy"));
    let halves = with(deepseek_v3(), "rope_interleave", json!(false));
    for document in [deepseek_v3(), deepseek_v2_lite(), with(grouped, "n_group", json!(8)), halves] {
        let config = parsed(&document);
        assert_eq!(parsed(&config.to_json("bfloat16")), config);
    }
}

/// The attribute maps of transformers 5.17: the alias is set after the field that it stands for.
#[test]
fn another_name_of_the_number_of_experts_has_priority_where_transformers_maps_it() {
    let experts = |document: Value, alias: &str| {
        parsed(&with(document, alias, json!(32))).experts.map(|experts| experts.num_experts)
    };
    assert_eq!(experts(deepseek_v2_lite(), "num_experts"), Some(32));
    assert_eq!(experts(deepseek_v2_lite(), "num_local_experts"), Some(64));
    assert_eq!(experts(deepseek_v3(), "num_local_experts"), Some(32));
    assert_eq!(experts(deepseek_v3(), "num_experts"), Some(256));
    assert_eq!(parsed(&with(deepseek_v3(), "num_local_experts", json!(null))), parsed(&deepseek_v3()));
}

#[test]
fn deepseek_v2_has_no_default_for_the_number_of_experts_per_token() {
    let refused = refusal(&with(deepseek_v2_lite(), "num_experts_per_tok", json!(null)));
    assert_eq!(refused, "model configuration: field `num_experts_per_tok` is missing");
    let v3 = parsed(&with(deepseek_v3(), "num_experts_per_tok", json!(null)));
    assert_eq!(v3.experts.map(|experts| experts.num_experts_per_token), Some(8));
}

#[test]
fn routing_that_could_not_be_is_refused_by_its_field() {
    let refused = |field: &str, value: Value, expected: &str| {
        let error = refusal(&with(deepseek_v3(), field, value));
        assert!(error.contains(&format!("`{field}`")) && error.contains(expected), "{error}");
    };
    refused("n_group", json!(7), "a divisor of n_routed_experts 256");
    refused("n_group", json!(256), "groups of at least 2");
    refused("topk_group", json!(9), "at most n_group 8");
    refused("num_key_value_heads", json!(64), "supported: num_attention_heads, 128");
    refused("qk_rope_head_dim", json!(63), "an even number");
    refused("moe_layer_freq", json!(2), "supported: 1");
    let lite = |field: &str, value: Value| refusal(&with(deepseek_v2_lite(), field, value));
    assert!(lite("topk_method", json!("noaux_tc")).contains("supported: greedy, group_limited_greedy"));
    assert!(lite("norm_topk_prob", json!(true)).contains("`norm_topk_prob`"));
    let grouped = with(deepseek_v2_lite(), "topk_method", json!("group_limited_greedy"));
    assert!(refusal(&with(grouped, "topk_group", json!(null))).contains("`topk_group`"));
}
