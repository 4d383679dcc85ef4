//! Placements of a model with experts, a shared expert and adapters of all of them, and of small models of
//! every family.

use rlt_api::conflicts::{Fact, conflict_of};
use rlt_models::{Family, is_expert_weight};

use super::*;
use crate::{LoadOptions, LoraConfig, ModuleMatch, Weights};

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

fn cuts(size: usize) -> RankSharding {
    RankSharding::new(&mixture(), AxisPlace { index: 0, size }, AxisPlace::ALONE)
}

/// The tensor-parallel shards of a parameter; `None` if every rank holds the full parameter.
fn shards_of(cuts: &RankSharding, name: &str) -> Option<DimShards> {
    let layout = cuts.layout(name);
    let (axis, shards) = layout.shards().next()?;
    assert_eq!(axis, Axis::Tp, "{name}");
    Some(shards.clone())
}

#[test]
fn the_shards_of_all_ranks_are_every_value_once() {
    for size in [2, 4, 8] {
        let cuts = cuts(size);
        let mut num_split = 0;
        for (name, tensor) in mixture().named_parameters() {
            let Some(DimShards { dim, of_ranks }) = shards_of(&cuts, &name) else { continue };
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
    let of = |name: &str| shards_of(&cuts, &format!("model.layers.0.mlp.experts.{name}")).unwrap();
    let (gate_up, down) = (of("gate_up_proj"), of("down_proj"));
    // The second rank has two of eight rows of gate, and the same two of up.
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
        assert!(cuts.layout(&name).is_partial_along(Axis::Tp), "{name}");
    }
    for name in [
        layer(0, "input_layernorm.weight"),
        layer(1, "mlp.gate_proj.weight"),
        adapter("mlp.experts.base_layer.lora_B"),
        adapter("mlp.experts.lora_A"),
        "model.norm.weight".to_owned(),
    ] {
        assert!(!cuts.layout(&name).is_partial_along(Axis::Tp), "{name}");
    }
    assert!(shards_of(&cuts, &adapter("mlp.experts.base_layer.lora_B")).is_some());
    assert!(shards_of(&cuts, &adapter("mlp.experts.lora_A")).is_some());
}

#[test]
fn experts_alone_are_split_along_the_expert_parallel_axis() {
    let (decoder, tp) = (mixture(), AxisPlace { index: 1, size: 2 });
    for tp in [AxisPlace::ALONE, tp] {
        let sharding = RankSharding::new(&decoder, tp, AxisPlace { index: 3, size: 4 });
        for (name, tensor) in decoder.named_parameters() {
            let layout = sharding.layout(&name);
            let is_distributed = layout.split_axes().contains(&Axis::Ep);
            assert_eq!(is_distributed, is_expert_weight(&name), "{name}");
            let local = layout.local(&tensor.size(), |axis| sharding.place_along(axis));
            if is_distributed {
                // Each rank holds two of eight experts, and a tensor-parallel shard of each.
                let own = tensor.numel() / 4 / tp.size;
                assert_eq!(local.local_shape().iter().product::<i64>() as usize, own, "{name}");
                assert_eq!(local.dims()[0].ranges.first(), Some(&(6..8)), "{name}");
            }
        }
    }
}

#[test]
fn a_decoder_holds_the_shards_of_its_rank() {
    let (decoder, tokens_t) = (mixture(), Tensor::from_slice(&[3_i64, 9]));
    assert!(decoder.own_tokens(&tokens_t).is_none());
    decoder.hold_shards(&RankSharding::new(&decoder, AxisPlace { index: 1, size: 2 }, AxisPlace::ALONE));
    assert_eq!(decoder.tokens(), 8..16);
    let own = decoder.own_tokens(&tokens_t).unwrap();
    assert_eq!(rlt_torch::to_vec::<i64>(&own.rows_t), [0, 1]);
    assert_eq!(rlt_torch::to_vec::<i64>(&own.is_other_t.to_kind(tch::Kind::Int64)), [1, 0]);
    let layer = &decoder.layers()[0];
    // The rank has four of eight heads, each four dims wide.
    let [queries, output] = [0, 3].map(|product: usize| {
        assert_eq!(layer.local_products()[product].rows.start, 0);
        layer.projections()[layer.products()[product].projection_idx].shard()
    });
    assert_eq!(layer.local_products()[0].rows, 0..16);
    assert_eq!(queries.outputs.as_ref().unwrap().ranges.first(), Some(&(16..32)));
    assert!(queries.inputs.is_none() && queries.adds_bias);
    // The output projection has the columns of the same heads, and only the first rank adds the bias.
    assert_eq!(output.inputs.as_ref().unwrap().ranges.first(), Some(&(16..32)));
    assert!(output.outputs.is_none() && !output.adds_bias);
}

#[test]
fn a_rank_that_is_alone_has_every_parameter() {
    let decoder = mixture();
    let sharding = RankSharding::new(&decoder, AxisPlace::ALONE, AxisPlace::ALONE);
    for (name, _) in decoder.named_parameters() {
        assert_eq!(sharding.layout(&name), ParameterLayout::default(), "{name}");
    }
}

/// A small model of a class with the given fields.
fn of_class(class: &str, fields: &serde_json::Value) -> ModelConfig {
    let mut document = serde_json::json!({
        "architectures": [class], "vocab_size": 200_003, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    });
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    ModelConfig::from_json(&document).unwrap()
}

/// Models that differ in the structure of their layers.
fn models() -> Vec<ModelConfig> {
    let dense = ["MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM"];
    let others = ["Gemma2ForCausalLM", "GraniteForCausalLM", "Glm4ForCausalLM", "Phi3ForCausalLM"];
    let plain = serde_json::json!({});
    let mut models: Vec<ModelConfig> =
        dense.into_iter().chain(others).map(|class| of_class(class, &plain)).collect();
    let biases = serde_json::json!({"attention_bias": true, "mlp_bias": true});
    let mut experts = serde_json::json!({
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
    });
    models.push(of_class("LlamaForCausalLM", &biases));
    models.push(of_class("Qwen3MoeForCausalLM", &experts));
    experts["shared_expert_intermediate_size"] = 24.into();
    models.push(of_class("Qwen2MoeForCausalLM", &experts));
    models
}

/// A small model of a family, with four experts in a layer if the family has experts.
fn of_family(family: Family) -> ModelConfig {
    let config = |experts: Option<serde_json::Value>| {
        let spec = serde_json::json!({
            "family": family, "hiddenSize": 48, "intermediateSize": 96, "numLayers": 2, "numHeads": 8, "headDim": 24,
            "experts": experts,
        });
        ModelConfig::from_architecture(&serde_json::from_value(spec).unwrap(), 40, &[2], None)
    };
    let experts = serde_json::json!({"count": 4, "perToken": 2});
    config(None).or_else(|_| config(Some(experts))).unwrap()
}

/// Ranges of a parameter's elements that a rank is the first to hold: they are empty if a rank with a lower
/// index along an axis that does not split the parameter holds the same ranges.
fn first_held(rank: &RankSharding, name: &str, size: &[i64]) -> Vec<Range<usize>> {
    let layout = rank.layout(name);
    let split = layout.split_axes();
    let is_copy = |axis: &Axis| !split.contains(axis) && rank.place_along(*axis).index > 0;
    if ParameterLayout::AXES.iter().any(is_copy) {
        return Vec::new();
    }
    let local = layout.local(size, |axis| rank.place_along(axis));
    local.runs(0..local.local_shape().iter().product::<i64>() as usize)
}

/// Checks that the shards of `tp` times `ep` ranks contain every element of every parameter exactly once.
#[track_caller]
fn assert_disjoint_and_complete(decoder: &Decoder, tp: usize, ep: usize) {
    let places = |size: usize| (0..size).map(move |index| AxisPlace { index, size });
    let all = places(tp).flat_map(|tp_place| places(ep).map(move |ep_place| [tp_place, ep_place]));
    let ranks: Vec<RankSharding> =
        all.map(|[tp_place, ep_place]| RankSharding::new(decoder, tp_place, ep_place)).collect();
    for (name, tensor) in decoder.named_parameters() {
        let size = tensor.size();
        let mut held: Vec<Range<usize>> =
            ranks.iter().flat_map(|rank| first_held(rank, &name, &size)).collect();
        held.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in held.into_iter().filter(|range| !range.is_empty()) {
            assert_eq!(range.start, end, "{name} of {:?} on {tp} x {ep} ranks", decoder.config.family);
            end = range.end;
        }
        assert_eq!(end as i64, size.iter().product::<i64>(), "{name} on {tp} x {ep} ranks");
    }
}

#[test]
fn shards_of_every_family_by_both_axes_are_every_number_once() {
    let families = Family::all().filter(|family| !family.has_vision()).map(of_family);
    let (mut num_tp, mut num_ep) = (0, 0);
    for config in families.chain(models()) {
        let decoder = Decoder::meta(&config, &LoadOptions::default()).unwrap();
        let facts = config.facts();
        let largest = |fact: Fact| if conflict_of(fact, &facts).is_none() { 4 } else { 1 };
        let [largest_tp, largest_ep] = [Fact::Tp, Fact::Ep].map(largest);
        for tp in [1, 2, 4].into_iter().filter(|tp| *tp <= largest_tp) {
            for ep in [1, 2, 4].into_iter().filter(|ep| *ep <= largest_ep) {
                assert_disjoint_and_complete(&decoder, tp, ep);
            }
        }
        num_tp += usize::from(largest_tp > 1);
        num_ep += usize::from(largest_ep > 1);
    }
    assert!(num_tp > 20 && num_ep > 6, "{num_tp} models by tp, {num_ep} by ep");
}

#[test]
fn planned_numbers_of_a_rank_are_those_it_keeps() {
    for config in models() {
        let decoder = Decoder::meta(&config, &LoadOptions::default()).unwrap();
        for (tp, ep) in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (4, 2)] {
            let first = |size: usize| AxisPlace { index: 0, size };
            let sharding = RankSharding::new(&decoder, first(tp), first(ep));
            let kept = |(name, tensor): &(String, Tensor)| {
                let layout = sharding.layout(name);
                let local = layout.local(&tensor.size(), |axis| sharding.place_along(axis));
                local.local_shape().iter().product::<i64>() as u64
            };
            let kept: u64 = decoder.named_parameters().iter().map(kept).sum();
            let experts = config.expert_weights_of_rank(tp).0;
            let planned = config.parameter_count_of_rank(tp).total() - experts + experts / ep as u64;
            assert_eq!(kept, planned, "{:?}, {tp} and {ep} ranks", config.family);
        }
    }
}
