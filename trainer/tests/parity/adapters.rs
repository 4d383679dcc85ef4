//! Compares adapters with PEFT: values, gradients, merged weights, and files in both directions.

use std::collections::BTreeMap;
use std::path::Path;

use rlt_decoder::{Adapter, Decoder, ExportOptions};
use serde_json::Value;
use tch::{Kind, Tensor};

use super::fixture::{Fixture, TOLERANCE, TRAINABLE, loss, max_error, packed};
use super::models::FAMILIES;

/// All linear layers; a list with rank-stabilised scaling; a pattern with an exception; fused projections;
/// experts and routers, gate and up of experts by a rank and an alpha of their own; experts alone; latents.
const ADAPTED: [&str; 9] =
    ["llama", "qwen3", "gemma", "gemma2", "cohere", "phi3", "mixtral", "qwen3-moe", "deepseek-v3"];

/// Fields in which an export differs: the dtype of its weights, its writer, `rope_theta` and
/// `rope_scaling`, which every version of transformers reads, a constant 1, the layers from which none
/// slides, and fields that repeat others or that no library reads.
const REWRITTEN: [&str; 11] = [
    "dtype",
    "torch_dtype",
    "transformers_version",
    "rope_parameters",
    "pretraining_tp",
    "max_window_layers",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "no_rope_layer_interval",
    "original_max_position_embeddings",
];

fn adapted(fixture: &Fixture) -> Decoder {
    let mut decoder = fixture.load();
    decoder.load_adapter(&fixture.dir.join("adapter")).unwrap();
    decoder
}

fn logits(decoder: &Decoder, fixture: &Fixture, adapter: Adapter) -> Tensor {
    decoder.logits(&decoder.hidden_states(&packed(&fixture.sequences()), adapter), adapter)
}

#[test]
fn an_adapter_made_by_peft_computes_what_peft_computes() {
    for family in ADAPTED {
        let (base, expected) = (
            Fixture::open(family, "expected.safetensors"),
            Fixture::open(family, "expected_adapter.safetensors"),
        );
        let decoder = adapted(&base);
        let with_adapter = logits(&decoder, &base, Adapter::On);
        let error = max_error(&with_adapter, expected.expected("logits"));
        assert!(error <= TOLERANCE, "{family}: {error:.2e}");
        let off =
            max_error(&logits(&decoder, &base, Adapter::Off), &logits(&base.load(), &base, Adapter::On));
        assert_eq!(off, 0.0, "{family}: with the adapter off the base is the reference, bit for bit");

        loss(&with_adapter, &packed(&base.sequences()), base.expected("loss_weights")).backward();
        let trainable = decoder.trainable_parameters();
        assert_eq!(trainable.len(), expected.with_prefix("grad.").count());
        let gradient_error = |(name, matrix): &(String, Tensor)| {
            max_error(&matrix.grad(), expected.expected(&format!("grad.{name}")))
        };
        let worst = trainable.iter().map(gradient_error).fold(0.0, f64::max);
        println!("{family} with adapter: logits {error:.1e}, gradients {worst:.1e}");
        assert!(worst <= TOLERANCE, "{family}: gradients {worst:.2e}");
    }
}

/// PEFT 0.18 mistook inputs of experts for outputs, and saved its matrices that way.
#[test]
fn an_adapter_of_experts_in_peft_0_18_s_layout_computes_what_peft_0_18_computes() {
    let base = Fixture::open("qwen3-moe", "expected.safetensors");
    let expected = Fixture::open("qwen3-moe", "expected_adapter_0_18.safetensors");
    let mut decoder = base.load();
    decoder.load_adapter(&base.dir.join("adapter_0_18")).unwrap();
    let error = max_error(&logits(&decoder, &base, Adapter::On), expected.expected("logits"));
    assert!(error <= TOLERANCE, "{error:.2e}");
}

#[test]
fn a_saved_adapter_is_what_peft_saves() {
    for family in ADAPTED {
        let base = Fixture::open(family, "expected.safetensors");
        let theirs = base.dir.join("adapter");
        let ours = tempfile::tempdir().unwrap();
        adapted(&base).save_adapter(ours.path(), None).unwrap();
        let tensors = |dir: &Path| -> BTreeMap<_, _> {
            let file = dir.join("adapter_model.safetensors");
            Tensor::read_safetensors(file).unwrap().into_iter().collect()
        };
        assert_eq!(tensors(ours.path()), tensors(&theirs), "{family}");

        let config = |dir: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(dir.join("adapter_config.json")).unwrap()).unwrap()
        };
        let (ours, theirs) = (config(ours.path()), config(&theirs));
        for (field, value) in ours.as_object().unwrap() {
            let expected = &theirs[field];
            let same = match (value, expected) {
                (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
                (Value::Array(a), Value::Array(b)) => {
                    a.len() == b.len() && a.iter().all(|item| b.contains(item))
                }
                _ => value == expected,
            };
            // Each fixture refers to its base model by the name of the folder.
            assert!(same || field == "base_model_name_or_path", "{family}: {field}: {value}, not {expected}");
        }
    }
}

#[test]
fn an_export_with_the_adapter_folded_in_is_peft_s_merged_model() {
    for family in ADAPTED {
        let (base, expected) = (
            Fixture::open(family, "expected.safetensors"),
            Fixture::open(family, "expected_adapter.safetensors"),
        );
        let dir = tempfile::tempdir().unwrap();
        let decoder = adapted(&base);
        decoder.export(dir.path(), &ExportOptions { merge_lora: true, dtype: Kind::Float }).unwrap();
        decoder.save_adapter(&dir.path().join("adapter"), None).unwrap();
        let merged = Decoder::load(dir.path(), &TRAINABLE).unwrap();
        let weights: std::collections::BTreeMap<_, _> = merged.named_parameters().into_iter().collect();
        for (name, weight) in expected.with_prefix("merged.") {
            assert!(max_error(&weights[name], weight) <= 1e-6, "{family}: {name}");
        }
        let error = max_error(&logits(&merged, &base, Adapter::On), expected.expected("logits"));
        assert!(error <= TOLERANCE, "{family}: {error:.2e}");
        let mut again = base.load();
        again.load_adapter(&dir.path().join("adapter")).unwrap();
        assert_eq!(
            again.trainable_parameters(),
            decoder.trainable_parameters(),
            "{family}: the adapter beside it"
        );
    }
}

#[test]
fn an_export_of_the_base_is_the_base() {
    for family in FAMILIES {
        let base = Fixture::open(family, "expected.safetensors");
        let dir = tempfile::tempdir().unwrap();
        let decoder = base.load();
        decoder.export(dir.path(), &ExportOptions { merge_lora: true, dtype: Kind::Float }).unwrap();
        let loaded = Decoder::load(dir.path(), &TRAINABLE).unwrap();
        assert_eq!(loaded.config, decoder.config, "{family}");
        assert_eq!(loaded.named_parameters(), decoder.named_parameters(), "{family}");
        let document = |dir: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
        };
        let (written, original) = (document(dir.path()), document(&base.dir));
        for (field, value) in original.as_object().unwrap() {
            if !REWRITTEN.contains(&field.as_str()) {
                assert_eq!(&written[field], value, "{family}: {field}");
            }
        }
    }
}
