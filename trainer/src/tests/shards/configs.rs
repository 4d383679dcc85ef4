//! Model configurations of the tests with shards.

use rlt_models::ModelConfig;

use super::Case;

/// Returns the configuration of a case's model, with two or three layers. Except for `shared`, the sizes make
/// shards uneven.
pub(super) fn config(case: Case) -> ModelConfig {
    if case.latent {
        return latent_config();
    }
    if case.sinks {
        return sinks_config(case.num_experts);
    }
    if case.shared {
        return shared_config(case);
    }
    let architecture = if case.experts { "Qwen3MoeForCausalLM" } else { case.dense };
    let kv_heads = case.kv_heads;
    ModelConfig::from_json(&serde_json::json!({
        "num_experts": case.num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 7, "norm_topk_prob": true,
        "mlp_only_layers": [1], "architectures": [architecture], "vocab_size": 11, "hidden_size": 13,
        "intermediate_size": 17 * kv_heads, "num_hidden_layers": 3, "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads, "pad_token_id": (case.dense == "Phi3ForCausalLM").then_some(10),
        "attention_bias": case.dense == "LlamaForCausalLM",
        "mlp_bias": case.dense == "LlamaForCausalLM", "head_dim": 6, "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.3, "tie_word_embeddings": case.tied, "hidden_act": "silu",
    }))
    .unwrap()
}

fn latent_config() -> ModelConfig {
    ModelConfig::from_json(&serde_json::json!({
        "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 11, "hidden_size": 13, "intermediate_size": 17,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 7,
        "kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 6,
        "n_shared_experts": 1, "moe_intermediate_size": 7, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
        "first_k_dense_replace": 1, "max_position_embeddings": 32, "initializer_range": 0.3,
    }))
    .unwrap()
}

/// Returns a model whose second layer has a feed-forward block. Its vocabulary, and the widths that tensor
/// parallelism splits, are multiples of the number of heads.
fn shared_config(case: Case) -> ModelConfig {
    let heads = case.kv_heads;
    ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen2MoeForCausalLM"], "vocab_size": 2 * heads, "hidden_size": 12, "intermediate_size": 2 * heads,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": 4, "num_experts": case.num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": heads,
        "norm_topk_prob": true, "shared_expert_intermediate_size": 3 * heads, "mlp_only_layers": [1],
        "max_position_embeddings": 32, "initializer_range": 0.3, "tie_word_embeddings": false, "hidden_act": "silu",
    }))
    .unwrap()
}

fn sinks_config(num_experts: usize) -> ModelConfig {
    ModelConfig::from_json(&serde_json::json!({
        "architectures": ["GptOssForCausalLM"], "vocab_size": 11, "hidden_size": 13, "intermediate_size": 7,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
        "num_local_experts": num_experts, "num_experts_per_tok": 2, "sliding_window": 3, "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "initializer_range": 0.3,
    }))
    .unwrap()
}
