//! Rollouts of quantized models: products dequantize codes as they read them, adapters stay unmerged, and
//! log-probs are the actor's.

use std::path::PathBuf;

use rlt_api::spec::{Precision, QuantizationFormat, QuantizationSpec};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_decoder::{Decoder, ExportOptions, LoadOptions, Weights};
use rlt_engine::{Engine, EngineOptions, Request};
use tch::{Kind, Tensor};

use super::fixture::*;

fn stored(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quantized").join(name)
}

/// A fixture of a family, quantized as it is read, with the adapter of its own.
fn quantized(family: &str, spec: &QuantizationSpec, kind: Kind) -> Decoder {
    let weights = Weights::open(&folder(family)).unwrap();
    let precision = if kind == Kind::BFloat16 { Precision::Bf16 } else { Precision::Fp32 };
    let weights = weights.quantized(Some(spec), precision).unwrap();
    let options = LoadOptions { param_dtype: kind, compute: kind, ..LoadOptions::default() };
    let mut decoder = Decoder::from_weights(&weights, &options).unwrap();
    decoder.load_adapter(&folder(family).join("adapter")).unwrap();
    decoder
}

fn specs() -> [QuantizationSpec; 3] {
    let spec = |format, double_quantization| QuantizationSpec {
        format,
        block_size: if format == QuantizationFormat::Fp4 { 32 } else { 64 },
        double_quantization,
        ..QuantizationSpec::default()
    };
    [
        spec(QuantizationFormat::Nf4, true),
        spec(QuantizationFormat::Fp4, false),
        spec(QuantizationFormat::Int8, false),
    ]
}

/// Within 1e-5, or within four times the distance of f32 from f64: the bound of dense models.
#[test]
fn rollout_logprobs_of_a_quantized_model_are_the_actors() {
    let requests = requests(4, 2, &SamplingParams::default());
    for (family, spec) in ["llama", "qwen3", "phi3"].into_iter().zip(specs()) {
        let (decoder, exact) =
            (quantized(family, &spec, Kind::Float), quantized(family, &spec, Kind::Double));
        let completions = generate(&decoder, options(), &requests).unwrap();
        assert_like_actor(family, [&decoder, &exact], &requests, &completions);
    }
}

/// The model that `decoder` computes with, dequantized and dense, with the adapter of the family.
fn dequantized(decoder: &Decoder, family: &str, kind: Kind) -> Decoder {
    let dir = tempfile::tempdir().unwrap();
    let numbers = ExportOptions { merge_lora: false, dtype: Kind::BFloat16 };
    decoder.export(dir.path(), &numbers).unwrap();
    let options = LoadOptions { param_dtype: kind, compute: kind, ..LoadOptions::default() };
    let mut dense = Decoder::load(dir.path(), &options).unwrap();
    dense.load_adapter(&folder(family).join("adapter")).unwrap();
    dense
}

/// Mean difference between given log-probs and those of `exact`.
fn mean_error(exact: &Decoder, requests: &[Request], completions: &[Vec<Completion>]) -> f64 {
    let (mut sum, mut num) = (0.0, 0);
    for (request, samples) in requests.iter().zip(completions) {
        for sample in samples {
            let exact = actor_logprobs(exact, request, sample);
            sum += exact
                .iter()
                .zip(&sample.rollout_logprobs)
                .map(|(a, b)| f64::from((a - b).abs()))
                .sum::<f64>();
            num += exact.len();
        }
    }
    sum / f64::from(num as u32)
}

/// Engine and actor add attention and products in different orders. Now and then a sum near a tie is rounded
/// to the other neighbour in bfloat16, which moves a log-prob by hundredths. Neither order is better: both
/// are equally far from the result of the same numbers in f64. A dense model is farther from its actor,
/// because the engine merges its adapter.
#[test]
fn in_bfloat16_a_quantized_rollout_is_as_exact_as_its_actor_and_nearer_to_it_than_a_dense_one() {
    let requests = requests(6, 3, &SamplingParams::default());
    for (family, spec) in ["llama", "qwen3", "phi3"].into_iter().zip(specs()) {
        let decoder = quantized(family, &spec, Kind::BFloat16);
        let exact = dequantized(&decoder, family, Kind::Double);
        let sampled = generate(&decoder, options(), &requests).unwrap();
        let actors = requests.iter().zip(&sampled).map(|(request, samples)| {
            let of_actor = |sample: &Completion| Completion {
                rollout_logprobs: actor_logprobs(&decoder, request, sample),
                ..sample.clone()
            };
            samples.iter().map(of_actor).collect()
        });
        let actors: Vec<Vec<Completion>> = actors.collect();
        let (rollout, actor) =
            (mean_error(&exact, &requests, &sampled), mean_error(&exact, &requests, &actors));
        let apart = mean_error(&decoder, &requests, &sampled);
        let dense = dequantized(&decoder, family, Kind::BFloat16);
        let of_dense = mean_error(&dense, &requests, &generate(&dense, options(), &requests).unwrap());
        assert!(rollout < 1.1 * actor, "{family}: {rollout:.1e} from f64, the actor {actor:.1e}");
        assert!(apart < 0.1 * of_dense, "{family}: {apart:.1e} apart, a dense model {of_dense:.1e}");
    }
}

/// Equality to the bit, as for dense models.
#[test]
fn a_sample_of_a_quantized_model_is_the_same_alone_and_in_any_batch() {
    for (family, spec) in ["llama", "qwen3", "phi3"].into_iter().zip(specs()) {
        let decoder = quantized(family, &spec, Kind::Float);
        let requests = requests(7, 2, &truncated());
        let together = generate(&decoder, options(), &requests).unwrap();
        for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (3, 20), (5, 4096)] {
            let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..options() };
            assert_eq!(together, generate(&decoder, bounds, &requests).unwrap(), "{family}");
        }
    }
}

#[test]
fn a_stored_model_is_sampled_with_its_own_bytes_and_a_sync_transfers_only_the_adapter() {
    let mut decoder = Decoder::load(&stored("nf4-nested"), &LoadOptions::default()).unwrap();
    decoder.load_adapter(&stored("nf4-nested").join("adapter")).unwrap();
    let mut engine = Engine::new(options());
    engine.sync_weights(&decoder, 0).unwrap();
    let greedy = Request {
        images: Vec::new(),
        prompt: (2..10).collect(),
        seeds: vec![0],
        sampling: SamplingParams::greedy(),
        max_new_tokens: 12,
    };
    let requests = [greedy];
    let mut generate = |decoder: &Decoder, version: u64| {
        engine.sync_weights(decoder, version).unwrap();
        let progress = &mut |_| std::ops::ControlFlow::Continue(());
        let completions = engine.generate(decoder, &requests, &Letters, progress).unwrap();
        (completions, engine.stats().weight_bytes)
    };
    let (before, weight_bytes) = generate(&decoder, 1);
    assert!(actor_error(&decoder, &requests, &before) < 1e-5);
    // Panels of 32 outputs: the head [64, 64]; of each layer A [4 to 32, in] and B [out, 4].
    let sizes = [[64, 64], [32, 64], [32, 64], [64, 64], [128, 64], [128, 64], [64, 128]];
    let of_layer: usize = sizes.iter().map(|[outputs, inputs]| 32 * inputs + outputs * 4).sum();
    assert_eq!(weight_bytes, 4 * (64 * 64 + 2 * of_layer), "the base is the trainer's own");
    for (name, matrix) in decoder.trainable_parameters() {
        let sign = if name.contains("lora_B") { -1.0 } else { 1.0 };
        tch::no_grad(|| matrix.shallow_clone().copy_(&(matrix.detach() * sign)));
    }
    let (after, _) = generate(&decoder, 2);
    assert_ne!(tokens(&before), tokens(&after), "the adapter takes part");
    assert!(actor_error(&decoder, &requests, &after) < 1e-5);
    let base = decoder.named_parameters().into_iter().filter(|(name, _)| !name.contains("lora"));
    let again = Decoder::load(&stored("nf4-nested"), &LoadOptions::default()).unwrap();
    for ((name, tensor), (_, other)) in base.zip(again.named_parameters()) {
        assert!(Tensor::equal(&tensor, &other), "{name} has changed");
    }
}
