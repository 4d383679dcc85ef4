//! Passes over single layers on one rank: cuts of the graph change no number.

use std::cell::Cell;
use std::rc::Rc;

use tch::{Device, Kind, Tensor, no_grad};

use super::style::{Exchange, ParallelStyle};
use super::*;
use crate::model::{Adapter, Decoder, LoadOptions, ModelConfig, PackedInput, RouterTap, Weights};
use crate::parallel::RankError;

/// A style that cuts the graph at every boundary of a layer and exchanges nothing.
#[derive(Debug)]
struct CutEverywhere {
    num_cuts: Rc<Cell<usize>>,
}

#[derive(Debug)]
struct Kept;

impl<'a> ParallelStyle<'a> for CutEverywhere {
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        if matches!(at, Boundary::Embedding | Boundary::HeadInput) {
            return None;
        }
        self.num_cuts.set(self.num_cuts.get() + 1);
        Some(Box::new(Kept))
    }
}

impl Exchange for Kept {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        Ok(end.detach().copy())
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        Ok(grad.copy())
    }
}

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

/// The first of these layers is dense.
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
    let weights = Weights::fresh(&ModelConfig::from_json(config).unwrap(), 7);
    Decoder::from_weights(&weights, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

/// Output of the first layer without and with a graph, then the gradients of its input and weights.
fn pass_over(decoder: &Decoder, styles: &Styles<'_>) -> Vec<Tensor> {
    let input = PackedInput::new(&[&[3, 1, 4, 1, 5], &[9, 2, 6]], Device::Cpu);
    let mut context = decoder.context(&input, Adapter::On);
    context.router = decoder.config.experts_of(0).map(|experts| {
        let slopes: Vec<f32> = (0..experts.num_experts).map(|expert| 0.1 + expert as f32).collect();
        RouterTap::balancing(Tensor::ones([8], (Kind::Float, Device::Cpu)), &slopes)
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

#[test]
fn a_style_that_copies_at_every_boundary_changes_no_bit() {
    for (config, expected_cuts) in [(dense(), 6), (latent(), 6), (experts(), 8)] {
        let decoder = decoder(&config);
        let num_cuts = Rc::new(Cell::new(0));
        let cut = Styles::default().with(Some(CutEverywhere { num_cuts: Rc::clone(&num_cuts) }));
        let (one_graph, graphs) = (pass_over(&decoder, &Styles::default()), pass_over(&decoder, &cut));
        let name = &config["architectures"][0];
        // Without and with a graph.
        assert_eq!(num_cuts.get(), 2 * expected_cuts, "{name}");
        assert!(one_graph.len() > 5 && one_graph.len() == graphs.len(), "{name}: {}", graphs.len());
        for (idx, (one, other)) in one_graph.iter().zip(&graphs).enumerate() {
            assert!(one.equal(other), "{name}: tensor {idx} differs");
        }
        assert!(one_graph[0].equal(&one_graph[1]), "{name}: a graph changes the output");
    }
}
