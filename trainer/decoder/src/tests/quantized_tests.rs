//! Quantized models against results of bitsandbytes, transformers and PEFT (`tests/fixtures/quantized`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rlt_api::spec::{LoraInit, LoraSpec, Precision, QuantizationFormat, QuantizationSpec};
use rlt_models::ModelConfig;
use tch::{Device, Kind, Tensor, no_grad};

use super::*;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quantized").join(name)
}

fn load(name: &str) -> Decoder {
    Decoder::load(&folder(name), &LoadOptions::default()).unwrap()
}

fn expected(name: &str) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(folder(name).join("expected.safetensors")).unwrap().into_iter().collect()
}

fn spec(name: &str) -> QuantizationSpec {
    let format = match name {
        "fp4-skip" => QuantizationFormat::Fp4,
        "int8" => QuantizationFormat::Int8,
        _ => QuantizationFormat::Nf4,
    };
    let skip_modules =
        if name == "fp4-skip" { vec!["lm_head".to_owned(), "down_proj".to_owned()] } else { Vec::new() };
    QuantizationSpec {
        format,
        double_quantization: name == "nf4-nested",
        skip_modules,
        ..QuantizationSpec::default()
    }
}

/// The dense model, quantized as it is read.
fn quantized(name: &str) -> Decoder {
    let weights = Weights::open(&folder("dense")).unwrap();
    let weights = weights.quantized(Some(&spec(name)), Precision::Fp32).unwrap();
    Decoder::from_weights(&weights, &LoadOptions::default()).unwrap()
}

const ALL: [&str; 4] = ["nf4", "nf4-nested", "fp4-skip", "int8"];

/// The log-probs of the fixture's tokens but the first, and the gradients of trained parameters.
fn learned(decoder: &Decoder) -> (Tensor, BTreeMap<String, Tensor>) {
    let tokens: Vec<u32> = (2..22).collect();
    let input = PackedInput::new(&[&tokens], Device::Cpu);
    let hidden_td = decoder.hidden_states(&input, Adapter::On);
    let logits_tv = decoder.logits(&hidden_td, Adapter::On).to_kind(Kind::Float);
    let next = Tensor::from_slice(&tokens[1..].iter().map(|token| i64::from(*token)).collect::<Vec<_>>());
    let log_probs = logits_tv.log_softmax(-1, Kind::Float).narrow(0, 0, 19);
    let picked = log_probs.gather(1, &next.unsqueeze(1), false).squeeze_dim(1);
    picked.sum(Kind::Float).backward();
    let gradients = decoder.trainable_parameters().into_iter().map(|(name, matrix)| (name, matrix.grad()));
    (picked.detach(), gradients.collect())
}

fn largest_difference(one: &Tensor, other: &Tensor) -> f64 {
    (one - other).abs().max().double_value(&[])
}

#[test]
fn stored_weights_are_multiplied_as_bitsandbytes_multiplies_them() {
    for name in ALL {
        let (decoder, expected) = (load(name), expected(name));
        let projections = decoder.layers().iter().flat_map(DecoderLayer::projections);
        let mut num_quantized = 0;
        for projection in projections.filter(|projection| projection.weight.as_quantized().is_some()) {
            let weight = &expected[&format!("{}.weight", projection.name)];
            assert_eq!(&projection.weight.wide_numbers(), weight, "{name}: {}", projection.name);
            num_quantized += 1;
        }
        assert_eq!(num_quantized, if name == "fp4-skip" { 12 } else { 14 }, "{name}");
    }
}

#[test]
fn weights_quantized_as_they_are_read_are_those_that_bitsandbytes_stores() {
    for name in ALL {
        let (ours, theirs) = (quantized(name).named_parameters(), load(name).named_parameters());
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for ((own_name, own), (their_name, their)) in ours.iter().zip(&theirs) {
            assert_eq!((own_name, own.kind()), (their_name, their.kind()), "{name}");
            assert_eq!(own, their, "{name}: {own_name}");
        }
    }
}

#[test]
fn an_adapter_on_quantized_weights_computes_and_learns_as_in_peft() {
    for name in ["nf4", "nf4-nested"] {
        let (mut decoder, expected) = (load(name), expected(name));
        decoder.load_adapter(&folder(name).join("adapter")).unwrap();
        let (log_probs, gradients) = learned(&decoder);
        assert!(largest_difference(&log_probs, &expected["log_probs"]) < 1e-5, "{name}");
        assert_eq!(gradients.len(), 28);
        for (matrix, gradient) in gradients {
            let theirs = &expected[&format!("gradient.{matrix}")];
            let scale = theirs.abs().max().double_value(&[]).max(1.0);
            assert!(largest_difference(&gradient, theirs) < 1e-5 * scale, "{name}: {matrix}");
        }
    }
}

/// A quantized model whose adapter is initialized by LoftQ.
fn loftq(name: &str, rank: u32, alpha: f64) -> Decoder {
    let weights = Weights::open(&folder("dense")).unwrap();
    let weights = weights.quantized(Some(&spec(name)), Precision::Fp32).unwrap();
    let mut decoder = Decoder::from_weights(&weights, &LoadOptions::default()).unwrap();
    let lora = LoraSpec { rank, alpha, init: LoraInit::Loftq, ..LoraSpec::default() };
    decoder.attach_lora_spec(&lora, 1).unwrap();
    let started: BTreeMap<_, _> =
        decoder.adapter_from_error(&weights, |_| true).unwrap().into_iter().collect();
    // Modules that are not quantized have PEFT's default initialization.
    for (name, matrix) in decoder.trainable_parameters() {
        if let Some(start) = started.get(&name) {
            no_grad(|| matrix.detach().copy_(start));
        }
    }
    decoder
}

/// Distance of a model's log-probs from those of the dense model.
fn distance_to_dense(decoder: &Decoder, adapter: Adapter) -> f64 {
    let tokens: Vec<u32> = (2..22).collect();
    let log_probs = |decoder: &Decoder, adapter| {
        let hidden_td = decoder.hidden_states(&PackedInput::new(&[&tokens], Device::Cpu), adapter);
        decoder.logits(&hidden_td, adapter).to_kind(Kind::Float).log_softmax(-1, Kind::Float)
    };
    let dense = Decoder::load(&folder("dense"), &LoadOptions::default()).unwrap();
    no_grad(|| log_probs(decoder, adapter) - log_probs(&dense, Adapter::Off)).norm().double_value(&[])
}

#[test]
fn loftq_starts_nearer_to_the_dense_model_than_the_quantized_base_whatever_the_scaling() {
    for name in ALL {
        let quantized = distance_to_dense(&loftq(name, 4, 8.0), Adapter::Off);
        // A matrix with 64 inputs has at most rank 64. The scaling is divided out of A and B.
        let [of_32, at_scaling_4, whole] = [(32, 32.0), (32, 128.0), (64, 16.0)]
            .map(|(rank, alpha)| distance_to_dense(&loftq(name, rank, alpha), Adapter::On));
        assert!(of_32 < 0.7 * quantized, "{name}: {of_32} beside {quantized}");
        assert!((at_scaling_4 / of_32 - 1.0).abs() < 1e-3, "{name}: {at_scaling_4} beside {of_32}");
        assert!(whole < 1e-2 * quantized, "{name}: {whole} beside {quantized}");
    }
}

/// LoftQ leaves the same error as a truncated singular value decomposition, which is the smallest for its
/// rank.
#[test]
fn loftq_s_product_is_the_best_approximation_of_the_quantization_error() {
    let (decoder, dense) = (loftq("nf4", 5, 40.0), load("dense"));
    let [quantized, dense] =
        [&decoder, &dense].map(|one| one.layers().iter().flat_map(DecoderLayer::projections));
    for (projection, dense) in quantized.zip(dense) {
        let lora = projection.lora.as_ref().unwrap();
        let error = no_grad(|| dense.weight.wide_numbers() - projection.weight.wide_numbers());
        let rest = no_grad(|| &error - lora.b.matmul(&lora.a) * lora.scaling).norm().double_value(&[]);
        let (_, singular, _) = error.svd(true, true);
        let least = singular.narrow(0, 5, singular.size()[0] - 5).norm().double_value(&[]);
        assert!((rest / least - 1.0).abs() < 1e-3, "{}: {rest} beside {least}", projection.name);
    }
}

#[test]
fn loftq_needs_weights_that_are_quantized_here() {
    let lora = LoraSpec { init: LoraInit::Loftq, ..LoraSpec::default() };
    for (name, got) in
        [("dense", "a model that is not quantized"), ("nf4", "a model that is stored quantized")]
    {
        let error = load(name).attach_lora_spec(&lora, 1).unwrap_err().to_string();
        assert!(error.contains("init: Loftq") && error.ends_with(got), "{error}");
    }
}

/// The weights of `decoder`, dequantized, as a dense model.
fn dense(decoder: &Decoder) -> Decoder {
    let dir = tempfile::tempdir().unwrap();
    decoder.export(dir.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
    Decoder::load(dir.path(), &LoadOptions::default()).unwrap()
}

#[test]
fn an_adapter_learns_bitwise_the_same_as_on_the_dequantized_model() {
    for name in ALL {
        let mut quantized = quantized(name);
        let mut dense = dense(&quantized);
        for decoder in [&mut quantized, &mut dense] {
            decoder.attach_lora(&LoraConfig::from_spec(&LoraSpec::default()), 1).unwrap();
            super::frozen_tests::fill_adapter(decoder);
        }
        assert_eq!(learned(&quantized), learned(&dense), "{name}");
    }
}

#[test]
fn an_adapter_is_merged_into_the_dequantized_weights_in_16_bits() {
    let mut decoder = load("nf4-nested");
    decoder.load_adapter(&folder("nf4-nested").join("adapter")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    decoder.export(dir.path(), &ExportOptions { merge_lora: true, dtype: Kind::BFloat16 }).unwrap();
    let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
    assert!(!config.contains("quantization_config"));
    let merged = Decoder::load(dir.path(), &LoadOptions::default()).unwrap();
    let expected = expected("nf4-nested");
    for (of_base, projection) in merged.layers[0].projections.iter().zip(&decoder.layers[0].projections) {
        let lora = projection.lora.as_ref().unwrap();
        let delta = no_grad(|| lora.b.matmul(&lora.a) * lora.scaling);
        let sum = (&expected[&format!("{}.weight", projection.name)] + delta).to_kind(Kind::BFloat16);
        assert_eq!(of_base.weight.numbers(), sum.to_kind(Kind::Float), "{}", projection.name);
    }
}

#[test]
fn quantized_weights_are_frozen() {
    let options = LoadOptions { trainable: true, ..LoadOptions::default() };
    let error = Decoder::load(&folder("nf4"), &options).unwrap_err().to_string();
    assert!(error.contains("4 or 8 bits") && error.contains("trained ones"), "{error}");
}

/// A folder of `name` whose tensors are changed by `change`.
fn refusal(name: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(folder(name).join("config.json"), dir.path().join("config.json")).unwrap();
    let stored = Tensor::read_safetensors(folder(name).join("model.safetensors")).unwrap();
    let mut tensors: BTreeMap<String, Tensor> = stored.into_iter().collect();
    change(&mut tensors);
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    Tensor::write_safetensors(&tensors, dir.path().join("model.safetensors")).unwrap();
    let error = Decoder::load(dir.path(), &LoadOptions::default()).unwrap_err().to_string();
    error.replace(&dir.path().display().to_string(), "DIR")
}

const STATE: &str = "model.layers.1.mlp.up_proj.weight.quant_state.bitsandbytes__nf4";

/// The state with `from` replaced by `to`.
fn with_state(from: &str, to: &str) -> String {
    refusal("nf4-nested", |tensors| {
        let text = String::from_utf8(Vec::<u8>::try_from(&tensors[STATE]).unwrap()).unwrap();
        assert!(text.contains(from), "{text}");
        tensors.insert(STATE.to_owned(), Tensor::from_slice(text.replace(from, to).as_bytes()));
    })
}

#[test]
fn a_state_that_bitsandbytes_would_not_write_is_refused_by_file_tensor_and_field() {
    for (from, to, field) in [
        ("\"nf4\"", "\"fp4\"", "quant_type"),
        ("\"blocksize\": 64", "\"blocksize\": 128", "blocksize"),
        ("\"float32\", \"shape\"", "\"int4\", \"shape\"", "dtype"),
        ("[128, 64]", "[64, 128]", "shape"),
        ("\"nested_blocksize\": 256", "\"nested_blocksize\": 64", "nested_blocksize"),
        ("\"nested_offset\"", "\"offset\"", "nested_offset"),
        ("{", "[", "quant_state"),
    ] {
        let message = with_state(from, to);
        for part in ["DIR/model.safetensors", STATE, &format!("`{field}`"), "expected", "got"] {
            assert!(message.contains(part), "{field}: {message}");
        }
    }
}

#[test]
fn tensors_of_a_quantized_weight_that_do_not_fit_are_refused_by_name() {
    let module = "model.layers.0.self_attn.q_proj";
    let name = |part: &str| format!("{module}.{part}");
    let zeros = |len, kind| Tensor::zeros([len], (kind, Device::Cpu));
    for (fixture, part, tensor) in [
        ("nf4", "weight.absmax", Some(zeros(63, Kind::Float))),
        ("nf4", "weight.absmax", Some(zeros(64, Kind::Uint8))),
        ("nf4", "weight.absmax", None),
        ("nf4", "weight", Some(zeros(2047, Kind::Uint8))),
        ("nf4", "weight.quant_map", Some(zeros(16, Kind::Float))),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", None),
        ("nf4-nested", "weight.nested_quant_map", None),
        ("nf4-nested", "weight.nested_absmax", Some(zeros(1, Kind::Float) / 0.0)),
        ("int8", "SCB", None),
        ("int8", "weight_format", Some(zeros(1, Kind::Uint8) + 1)),
        ("int8", "weight", Some(zeros(4096, Kind::Uint8))),
    ] {
        let message = refusal(fixture, |tensors| {
            tensors.remove(&name(part));
            tensors.extend(tensor.map(|tensor| (name(part), tensor)));
        });
        assert!(message.contains(&name(part)), "{fixture}: {part}: {message}");
    }
}

#[test]
fn a_job_that_asks_for_another_quantization_than_the_files_have_is_refused() {
    let refused = |name: &str, spec: QuantizationSpec| {
        let weights = Weights::open(&folder(name)).unwrap();
        let error = weights.quantized(Some(&spec), Precision::Fp32).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert!(refused("nf4", spec("int8")).contains("bnb_4bit_quant_type"));
    assert!(refused("nf4", spec("nf4-nested")).contains("bnb_4bit_use_double_quant"));
    assert!(refused("nf4", QuantizationSpec { block_size: 128, ..spec("nf4") }).contains("blocksize"));
    let skips = QuantizationSpec { skip_modules: vec!["up_proj".to_owned()], ..spec("nf4") };
    assert!(refused("nf4", skips).contains("llm_int8_skip_modules"));
}

/// Quantized linear layers take 4.5 bits a weight, and 4.13 with nested scales; embeddings and norms keep 16.
#[test]
fn a_base_shaped_as_smollm2_135m_takes_as_much_as_its_codes_and_scales() {
    let text = include_str!("../../../benches/rollout/model.json");
    let config = ModelConfig::from_json(&serde_json::from_str(text).unwrap()).unwrap();
    for (double, bits) in [(false, 4.5), (true, 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0))] {
        let spec = QuantizationSpec { double_quantization: double, ..QuantizationSpec::default() };
        let quantized = config.clone().with_quantization(Some(&spec)).unwrap().quantized();
        assert_eq!(quantized.numbers, 106_168_320);
        let ratio = 8.0 * quantized.bytes as f64 / quantized.numbers as f64 / bits;
        // The rest is one offset per weight, and incomplete blocks of nested scales.
        assert!((1.0..1.001).contains(&ratio), "{ratio}");
    }
}

#[test]
fn the_plan_counts_the_bytes_that_tensors_of_quantized_weights_take() {
    for name in ALL {
        let decoder = load(name);
        let bytes = |weight: &base_weight::QuantizedWeight| weight.matrix.num_bytes() as u64;
        let projections = decoder.layers().iter().flat_map(DecoderLayer::projections);
        let held: u64 = projections.filter_map(|one| one.weight.as_quantized()).map(bytes).sum();
        assert_eq!(decoder.config.quantized().bytes, held, "{name}");
    }
}
