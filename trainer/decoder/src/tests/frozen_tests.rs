//! Frozen weights in the compute dtype give the same bits as fp32 weights that are rounded on each use.

use rlt_api::spec::LoraSpec;
use rlt_models::ModelConfig;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;

/// A small model with every kind of weight, such as biases, norms of heads and an untied head.
fn config() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "attention_bias": true, "tie_word_embeddings": false, "initializer_range": 0.3
    }))
    .unwrap()
}

fn decoder(param_dtype: Kind) -> Decoder {
    let options = LoadOptions { param_dtype, compute: Kind::BFloat16, ..LoadOptions::default() };
    Decoder::from_config(&config(), 7, &options).unwrap()
}

fn adapted(param_dtype: Kind) -> Decoder {
    let mut decoder = decoder(param_dtype);
    decoder.attach_lora(&LoraConfig::from_spec(&LoraSpec { rank: 4, ..LoraSpec::default() }), 1).unwrap();
    fill_adapter(&decoder);
    decoder
}

/// Fills the matrices of an adapter with values that follow from their sizes alone. libtorch's generator is
/// one for all threads, which other tests use meanwhile.
pub(super) fn fill_adapter(decoder: &Decoder) {
    for (index, (_, matrix)) in decoder.trainable_parameters().into_iter().enumerate() {
        let numbers = Tensor::arange(matrix.numel() as i64, (Kind::Double, Device::Cpu)) + index as f64;
        let values = (numbers * 12.9898).sin().reshape(matrix.size()) * 0.1;
        tch::no_grad(|| matrix.shallow_clone().copy_(&values));
    }
}

fn bits(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).reshape([-1])).unwrap()
}

/// Hidden states and logits, then the gradients of trained parameters.
fn computed(decoder: &Decoder) -> Vec<Vec<f32>> {
    let input = PackedInput::new(&[&[3, 14, 15, 9, 26], &[5, 35]], Device::Cpu);
    let hidden_td = decoder.hidden_states(&input, Adapter::On);
    let logits_tv = decoder.logits(&hidden_td, Adapter::On);
    let trained = decoder.trainable_parameters();
    if !trained.is_empty() {
        logits_tv.to_kind(Kind::Float).square().sum(Kind::Float).backward();
    }
    let gradients = trained.iter().map(|(_, matrix)| matrix.grad());
    [hidden_td, logits_tv].into_iter().chain(gradients).map(|tensor| bits(&tensor)).collect()
}

#[test]
fn a_bf16_base_below_an_adapter_trains_like_an_fp32_base() {
    let (narrow, wide) = (adapted(Kind::BFloat16), adapted(Kind::Float));
    assert!(narrow.base_parameters().iter().all(|(_, weight)| weight.kind() == Kind::BFloat16));
    assert!(narrow.trainable_parameters().iter().all(|(_, matrix)| matrix.kind() == Kind::Float));
    let computed = [computed(&narrow), computed(&wide)];
    assert!(computed[0].len() > 20);
    assert_eq!(computed[0], computed[1]);
}

#[test]
fn an_adapter_is_folded_into_a_narrow_base_with_one_rounding() {
    let decoder = adapted(Kind::BFloat16);
    for projection in decoder.layers().iter().flat_map(DecoderLayer::projections) {
        let lora = projection.lora.as_ref().unwrap();
        let delta = lora.b.matmul(&lora.a) * lora.scaling;
        let expected = (projection.weight.wide_numbers() + delta).to_kind(Kind::BFloat16);
        let folded = projection.merged(Adapter::On).weight.to_kind(Kind::BFloat16);
        assert_eq!(bits(&folded), bits(&expected));
    }
}

#[test]
fn a_frozen_copy_takes_half_the_memory_and_computes_the_same() {
    let trained = decoder(Kind::Float);
    let copy = trained.frozen_copy(trained.compute_kind(), trained.compute_kind());
    let bytes = |decoder: &Decoder| -> usize {
        let size = |weight: &Tensor| weight.numel() * weight.kind().elt_size_in_bytes();
        decoder.named_parameters().iter().map(|(_, weight)| size(weight)).sum()
    };
    assert_eq!(2 * bytes(&copy), bytes(&trained));
    assert_eq!(computed(&copy), computed(&trained));
    let meta = trained.frozen_meta(trained.compute_kind(), trained.compute_kind());
    assert!(meta.named_parameters().iter().all(|(_, weight)| weight.kind() == Kind::BFloat16));
}
