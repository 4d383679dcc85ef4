//! A model that is loaded with folded adapters equals the merged model bit for bit, in every shard.

use rlt_api::spec::{LoraInit, LoraSpec, Precision, QuantizationFormat, QuantizationSpec};
use serde_json::json;

use super::*;
use crate::{Decoder, ExportOptions, LoadOptions, Weights};

/// Configuration of a model whose weights have more rows than a block, and a smaller last block.
fn config() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 50, "hidden_size": 72, "intermediate_size": 150,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3
    }))
    .unwrap()
}

/// A model below `root`, stored in `kind`.
fn model(root: &Path, kind: Kind) -> std::path::PathBuf {
    let decoder = Decoder::from_config(&config(), 7, &LoadOptions::default()).unwrap();
    export(&decoder, &root.join("model"), kind)
}

fn export(decoder: &Decoder, dir: &Path, dtype: Kind) -> std::path::PathBuf {
    decoder.export(dir, &ExportOptions { merge_lora: true, dtype }).unwrap();
    dir.to_owned()
}

/// Makes an adapter that changes the model in `dir`, and the merged model in f32.
fn adapter(dir: &Path, name: &str, spec: &LoraSpec, seed: u64) -> [std::path::PathBuf; 2] {
    let mut decoder = Decoder::load(dir, &LoadOptions::default()).unwrap();
    // B is not zero under Orthogonal.
    decoder.attach_lora_spec(&LoraSpec { init: LoraInit::Orthogonal, ..spec.clone() }, seed).unwrap();
    let of_b = decoder.trainable_parameters().into_iter().filter(|(name, _)| name.contains("lora_B"));
    no_grad(|| of_b.for_each(|(_, matrix)| drop(matrix.shallow_clone().g_add_scalar_(0.02))));
    let [adapter, merged] = ["adapter", "merged"].map(|kind| dir.with_file_name(format!("{name}-{kind}")));
    decoder.save_adapter(&adapter, None).unwrap();
    [adapter, export(&decoder, &merged, Kind::Float)]
}

fn folded(model: &Path, adapters: &[&Path]) -> Weights {
    Weights::open(model).unwrap().with_adapters(adapters.iter().copied()).unwrap()
}

/// Some numbers of a weight, in `kind`.
fn numbers(weights: &Weights, name: &str, shape: &[i64], range: Range<usize>, kind: Kind) -> Tensor {
    let values = Tensor::zeros([range.len() as i64], (kind, Device::Cpu));
    weights.fill(&TensorRun { name, shape, range }, &values).unwrap();
    values
}

/// Calls `check` with the name, the shape and the size of every weight.
fn each_weight(check: impl Fn(&str, &[i64], usize)) {
    for parameter in config().parameters() {
        let shape: Vec<i64> = parameter.shape.iter().map(|dim| *dim as i64).collect();
        check(&parameter.name, &shape, parameter.shape.iter().product());
    }
}

fn farthest(one: &Tensor, other: &Tensor) -> f64 {
    (one.to_kind(Kind::Float) - other.to_kind(Kind::Float)).abs().max().double_value(&[])
}

#[test]
fn two_adapters_folded_in_are_both_merged_and_the_sum_is_rounded_once() {
    let place = tempfile::tempdir().unwrap();
    for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2.0 / 128.0)] {
        let base = model(place.path(), kind);
        let all = LoraSpec { rank: 4, alpha: 16.0, ..LoraSpec::default() };
        let some = LoraSpec { rank: 2, target_modules: vec!["q_proj".to_owned()], ..all.clone() };
        let [first, after_one] = adapter(&base, "first", &all, 1);
        let [second, after_two] = adapter(&after_one, "second", &some, 2);
        let [merged, one, two] =
            [(&after_two, vec![]), (&base, vec![&*first]), (&base, vec![&*first, &*second])]
                .map(|(model, adapters)| folded(model, &adapters));
        each_weight(|name, shape, len| {
            let of = |weights: &Weights| numbers(weights, name, shape, 0..len, kind);
            assert!(farthest(&of(&two), &of(&merged)) <= tolerance, "{name} in {kind:?}");
            assert_eq!(farthest(&of(&two), &of(&one)) > 1e-3, name.contains("q_proj.weight"), "{name}");
            let changed = farthest(&of(&one), &of(&folded(&base, &[]))) > 1e-3;
            assert_eq!(changed, name.contains("_proj.weight"), "{name}");
        });
    }
}

#[test]
fn every_shard_of_the_sum_has_the_bits_of_the_whole() {
    let place = tempfile::tempdir().unwrap();
    let base = model(place.path(), Kind::BFloat16);
    let [adapter, _] = adapter(&base, "one", &LoraSpec { rank: 6, ..LoraSpec::default() }, 3);
    let weights = folded(&base, &[&adapter]);
    each_weight(|name, shape, len| {
        let whole = numbers(&weights, name, shape, 0..len, Kind::Float);
        for parts in [2, 3, 7] {
            let bounds = (0..parts).map(|part| part * len / parts..(part + 1) * len / parts);
            let shards = bounds.map(|range| numbers(&weights, name, shape, range, Kind::Float));
            assert_eq!(Tensor::cat(&shards.collect::<Vec<_>>(), 0), whole, "{name} in {parts}");
        }
    });
}

#[test]
fn the_sum_of_weight_and_adapter_is_quantized() {
    let place = tempfile::tempdir().unwrap();
    let base = model(place.path(), Kind::Float);
    let [adapter, merged] = adapter(&base, "one", &LoraSpec { rank: 4, ..LoraSpec::default() }, 3);
    let int8 = QuantizationSpec { format: QuantizationFormat::Int8, ..QuantizationSpec::default() };
    let quantized = |weights: Weights| weights.quantized(Some(&int8), Precision::Fp32);
    let error = |weights: Weights| {
        let decoder = Decoder::from_weights(&quantized(weights).unwrap(), &LoadOptions::default()).unwrap();
        let merged = Decoder::load(&merged, &LoadOptions::default()).unwrap();
        let all = decoder.layers().iter().zip(merged.layers());
        let pairs = all.flat_map(|(of, like)| of.projections.iter().zip(&like.projections));
        let errors = pairs.map(|(of, like)| farthest(&of.weight.wide_numbers(), &like.weight.wide_numbers()));
        errors.fold(0.0, f64::max)
    };
    let [of_sum, of_base] = [folded(&base, &[&adapter]), folded(&base, &[])].map(error);
    assert!(of_sum < 0.02 && of_base > 3.0 * of_sum, "{of_sum} beside {of_base}");
}

#[test]
fn adapters_that_are_more_than_products_are_refused_by_the_setting() {
    let place = tempfile::tempdir().unwrap();
    let base = model(place.path(), Kind::Float);
    let refusal = |spec: LoraSpec, name: &str| {
        let [adapter, _] = adapter(&base, name, &spec, 1);
        let error = Weights::open(&base).unwrap().with_adapters([&*adapter].into_iter()).unwrap_err();
        error.to_string()
    };
    let dora = refusal(LoraSpec { rank: 2, dora: true, ..LoraSpec::default() }, "dora");
    assert!(dora.contains("use_dora") && dora.contains("model.adapters"), "{dora}");
    let saved = LoraSpec { rank: 2, modules_to_save: vec!["embed_tokens".to_owned()], ..LoraSpec::default() };
    let saved = refusal(saved, "saved");
    assert!(saved.contains("modules_to_save"), "{saved}");
    let missing = Weights::open(&base).unwrap().with_adapters([place.path()].into_iter()).unwrap_err();
    assert!(missing.to_string().contains("adapter_config.json"), "{missing}");
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quantized/nf4");
    let [adapter, _] = adapter(&base, "plain", &LoraSpec { rank: 2, ..LoraSpec::default() }, 1);
    let codes = Weights::open(&stored).unwrap().with_adapters([&*adapter].into_iter()).unwrap_err();
    assert!(codes.to_string().contains("got quantized ones"), "{codes}");
}
