//! Tests of the table against `tp_sharded`, by whose sizes activations are planned.

use serde_json::{Value, json};

use super::*;

/// A small model of a class with the given fields.
fn of_class(class: &str, fields: Value) -> ModelConfig {
    let mut document = json!({
        "architectures": [class], "vocab_size": 200_003, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    });
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    ModelConfig::from_json(&document).unwrap()
}

/// A layer with experts and a shared expert, and one with a feed-forward block.
fn shared_expert() -> ModelConfig {
    let fields = json!({
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
        "shared_expert_intermediate_size": 24, "mlp_only_layers": [1],
    });
    of_class("Qwen2MoeForCausalLM", fields)
}

/// Returns models that together have every kind of layer.
fn models() -> Vec<ModelConfig> {
    let experts = json!({
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
    });
    let biases = json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": false});
    let dense = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
    let others = ["GemmaForCausalLM", "Gemma2ForCausalLM", "GraniteForCausalLM", "Glm4ForCausalLM"];
    let dense = dense.into_iter().chain(others).chain(["Phi3ForCausalLM"]);
    let mut models: Vec<ModelConfig> = dense.map(|class| of_class(class, json!({}))).collect();
    models.extend([of_class("LlamaForCausalLM", biases), of_class("Qwen3MoeForCausalLM", experts)]);
    models.push(shared_expert());
    models
}

#[test]
fn a_rank_has_as_many_parameters_as_the_model_of_its_shard() {
    for model in models() {
        // With eight ranks, two ranks hold the same key head.
        for tp in [1, 2, 4, 8] {
            let (family, shard) = (model.family, model.tp_sharded(tp));
            assert_eq!(model.parameter_count_of_rank(tp), shard.parameter_count(), "{family:?}, {tp} ranks");
            assert_eq!(model.expert_weights_of_rank(tp), shard.expert_weights(), "{family:?}, {tp} ranks");
            let layers = 0..model.num_layers;
            let matrices: u64 = layers.map(|layer_idx| model.matrices_of_layer_of_rank(layer_idx, tp)).sum();
            assert_eq!(matrices, shard.matrices_of_layers(), "{family:?}, {tp} ranks");
        }
    }
}

#[test]
fn expert_parallel_ranks_have_different_experts_and_everything_else() {
    let model = shared_expert();
    let sharding = ModelSharding::new(&model);
    for parameter in model.parameters() {
        let all = parameter.shape.iter().product::<usize>() as u64;
        let expected = if is_expert_weight(&parameter.name) { all / 4 } else { all };
        assert_eq!(sharding.largest_part(&parameter, 1, 4), expected, "{}", parameter.name);
    }
}

#[test]
fn a_fused_weight_is_split_part_by_part() {
    let sharding = ModelSharding::new(&of_class("Phi3ForCausalLM", json!({})));
    let ParameterSplit::Dim(split) = sharding.along_tp("model.layers.1.self_attn.qkv_proj.weight") else {
        panic!("the weight is split");
    };
    assert_eq!((split.dim, split.len), (0, 128));
    let parts: Vec<_> = split.parts.iter().map(|part| (part.start, part.count, part.len)).collect();
    assert_eq!(parts, [(0, 8, 8), (64, 4, 8), (96, 4, 8)]);
}

#[test]
fn more_ranks_than_key_heads_have_a_key_head_each() {
    let model = of_class("LlamaForCausalLM", json!({}));
    let keys = &model.product_splits(0)[1];
    assert_eq!([1, 2, 4, 8].map(|num_ranks| keys.largest_share(num_ranks)), [32, 16, 8, 8]);
}

#[test]
fn an_adapter_of_gate_and_up_alone_has_the_outer_wrapper() {
    let mut sharding = ModelSharding::new(&shared_expert());
    let name = |wrapper: &str, matrix: &str| {
        format!("base_model.model.model.layers.0.mlp.experts{wrapper}.lora_{matrix}.weight")
    };
    let inner = ["A", "B"].map(|matrix| sharding.along_tp(&name(".base_layer", matrix)));
    assert!(matches!(&inner, [ParameterSplit::Partial, ParameterSplit::Dim(DimSplit { dim: 0, .. })]));
    let outer = ["A", "B"].map(|matrix| sharding.along_tp(&name("", matrix)));
    assert!(matches!(&outer, [ParameterSplit::Dim(DimSplit { dim: 1, .. }), ParameterSplit::Partial]));
    sharding.adapting_gate_and_up_alone(0);
    assert_eq!(["A", "B"].map(|matrix| sharding.along_tp(&name("", matrix))), inner);
}
