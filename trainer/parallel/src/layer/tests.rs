//! Passes over single layers on one rank, with their outputs and gradients.

mod copies;
mod memory;

use rlt_decoder::{Adapter, Decoder, LoadOptions, PackedInput, RouterObserver, Weights};
use rlt_models::ModelConfig;
use tch::{Device, Kind, Tensor, no_grad};

use super::*;

fn dense() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 11, "hidden_size": 13, "intermediate_size": 17,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.3,
        "tie_word_embeddings": false, "hidden_act": "silu",
    })
}

fn experts() -> serde_json::Value {
    let mut config = dense();
    config["architectures"] = serde_json::json!(["Qwen3MoeForCausalLM"]);
    for (name, number) in [("num_experts", 4), ("num_experts_per_tok", 2), ("moe_intermediate_size", 7)] {
        config[name] = serde_json::json!(number);
    }
    config["norm_topk_prob"] = serde_json::json!(true);
    config
}

/// Configuration of a model with latent attention and experts, whose first layer is dense.
fn latent() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 11, "hidden_size": 13, "intermediate_size": 17,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 7,
        "kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 6,
        "n_shared_experts": 1, "moe_intermediate_size": 7, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
        "first_k_dense_replace": 1, "max_position_embeddings": 32, "initializer_range": 0.3,
    })
}

fn decoder(config: &serde_json::Value) -> Decoder {
    let weights = Weights::random_init(&ModelConfig::from_json(config).unwrap(), 7);
    Decoder::from_weights(&weights, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

/// Returns the output of the first layer without and with a graph, then the gradients of its input and
/// weights.
fn pass_over(decoder: &Decoder, styles: &Styles<'_>) -> Vec<Tensor> {
    let input = PackedInput::new(&[&[3, 1, 4, 1, 5], &[9, 2, 6]], Device::Cpu);
    let mut context = decoder.context(&input, Adapter::On);
    context.router = decoder.config.experts_of(0).map(|experts| {
        let slopes: Vec<f32> = (0..experts.num_experts).map(|expert| 0.1 + expert as f32).collect();
        RouterObserver::balancing(Tensor::ones([8], (Kind::Float, Device::Cpu)), &slopes)
    });
    let input_td = decoder.embed(&input.tokens, Adapter::On).detach();
    let grad_td = &input_td * 0.5 + 0.1;
    let run = |input_td: Tensor| LayerPass::run(&decoder.layers()[0], input_td, &context, styles).unwrap();
    let inferred_td = no_grad(|| run(input_td.shallow_clone())).output_td;
    let pass = run(input_td.set_requires_grad(true));
    let mut numbers = vec![inferred_td, pass.output_td.detach().copy()];
    numbers.extend(pass.backward(Some(&grad_td)).unwrap());
    for (_, weight) in decoder.trainable_parameters() {
        let grad = weight.grad();
        numbers.extend(grad.defined().then(|| grad.copy()));
        rlt_torch::set_grad(&weight, None);
    }
    numbers
}
