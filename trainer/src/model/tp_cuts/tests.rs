//! Placements of a model with experts, a shared expert and adapters of all of them.

use super::*;
use crate::model::{LoadOptions, LoraConfig, ModelConfig, ModuleMatch, Weights};

/// Qwen2-MoE: a shared expert with a gate in the first layer, a dense block in the second, biases of q, k and
/// v.
fn mixture() -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen2MoeForCausalLM"], "vocab_size": 16, "hidden_size": 12, "intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 4,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": true,
        "shared_expert_intermediate_size": 24, "mlp_only_layers": [1], "max_position_embeddings": 32,
        "tie_word_embeddings": false, "hidden_act": "silu",
    }));
    let mut decoder =
        Decoder::from_weights(&Weights::random_init(&config.unwrap(), 7), &LoadOptions::default()).unwrap();
    let lora = LoraConfig {
        rank: 2,
        targets: ModuleMatch::AllLinear,
        target_parameters: ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
            .map(Into::into)
            .into(),
        ..LoraConfig::default()
    };
    decoder.attach_lora(&lora, 3).unwrap();
    decoder
}

fn cuts(size: usize) -> ModelSharding {
    ModelSharding::new(&mixture(), AxisPlace { index: 0, size })
}

#[test]
fn the_parts_of_all_ranks_are_every_number_once() {
    for size in [1, 2, 4, 8] {
        let cuts = cuts(size);
        let mut num_split = 0;
        for (name, tensor) in mixture().named_parameters() {
            let Some(DimShards { dim, of_ranks }) = cuts.of(&name) else { continue };
            let len = tensor.size()[dim] as usize;
            assert!(of_ranks.len() == size && of_ranks.iter().all(|own| own.len == len), "{name}");
            let of_ranks = of_ranks.iter().flat_map(|own| own.ranges.iter().cloned().flatten());
            let mut indices: Vec<usize> = of_ranks.collect();
            indices.sort_unstable();
            assert_eq!(indices, (0..len).collect::<Vec<_>>(), "{name}");
            num_split += 1;
        }
        // Embedding and head, seven weights and three biases of attention and block, the two tensors of
        // experts; the rest are adapters.
        assert!(num_split > 2 + 2 * 10 + 2, "{num_split}");
    }
}

#[test]
fn experts_are_split_by_the_width_of_each() {
    let cuts = cuts(4);
    let of = |name: &str| cuts.of(&format!("model.layers.0.mlp.experts.{name}")).unwrap();
    let (gate_up, down) = (of("gate_up_proj"), of("down_proj"));
    // The second rank has two of eight gates, and the ups of the same.
    assert_eq!((gate_up.dim, &gate_up.of_ranks[1].ranges[..]), (1, &[2..4, 10..12][..]));
    assert_eq!((down.dim, down.of_ranks[1].ranges[0].clone()), (2, 2..4));
}

#[test]
fn a_parameter_that_scales_a_summand_has_a_partial_gradient() {
    let cuts = cuts(2);
    let layer = |idx: usize, name: &str| format!("model.layers.{idx}.{name}");
    let adapter = |name: &str| format!("base_model.model.model.layers.0.{name}.weight");
    for name in [
        layer(0, "mlp.gate.weight"),
        layer(0, "mlp.shared_expert_gate.weight"),
        adapter("mlp.gate.lora_A"),
        adapter("mlp.gate.lora_B"),
        adapter("mlp.shared_expert_gate.lora_B"),
        // The inner wrapper adapts gate and up, the outer one down.
        adapter("mlp.experts.base_layer.lora_A"),
        adapter("mlp.experts.lora_B"),
        adapter("mlp.shared_expert.down_proj.lora_B"),
        adapter("self_attn.q_proj.lora_A"),
    ] {
        assert!(cuts.is_summed(&name), "{name}");
    }
    for name in [
        layer(0, "input_layernorm.weight"),
        layer(1, "mlp.gate_proj.weight"),
        adapter("mlp.experts.base_layer.lora_B"),
        adapter("mlp.experts.lora_A"),
        "model.norm.weight".to_owned(),
    ] {
        assert!(!cuts.is_summed(&name), "{name}");
    }
    assert!(cuts.of(&adapter("mlp.experts.base_layer.lora_B")).is_some());
    assert!(cuts.of(&adapter("mlp.experts.lora_A")).is_some());
}
