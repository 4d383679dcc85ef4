//! Models that kernels cannot read as they are: heads of a width that is no multiple of eight, GELU by the
//! error function. They take the same steps on a device as any other.

use std::ops::ControlFlow;
use std::path::Path;

use rlt_core::sampling::SamplingParams;
use rlt_decoder::{Decoder, ExportOptions, LoadOptions};
use rlt_engine::{Engine, EngineError, EngineOptions};
use rlt_models::ModelConfig;
use serde_json::json;
use tch::{Device, Kind};

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::{DEVICE, on_device, sampled};

/// Writes a model with heads of width `head_dim`, and with head norms if the family has them.
fn write(folder: &Path, family: &str, head_dim: usize) {
    let config = ModelConfig::from_json(&json!({
        "architectures": [family], "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim,
        "hidden_act": "gelu", "max_position_embeddings": 128, "attention_bias": family.starts_with("Llama"),
    }))
    .unwrap();
    let decoder = Decoder::from_config(&config, 5, &LoadOptions::default()).unwrap();
    decoder.export(folder, &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
}

fn load(folder: &Path, device: Device) -> Decoder {
    Decoder::load(folder, &LoadOptions { device, ..LoadOptions::default() }).unwrap()
}

#[test]
fn heads_of_any_even_width_and_exact_gelu_sample_the_same_tokens_on_a_device_and_the_cpu() {
    let test = "odd_models_on_device::\
                heads_of_any_even_width_and_exact_gelu_sample_the_same_tokens_on_a_device_and_the_cpu";
    on_device(test, || {
        let mut same = SameSamples::default();
        for (family, head_dim) in [("LlamaForCausalLM", 10), ("Qwen3ForCausalLM", 12)] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), family, head_dim);
            let (cpu, device) = (load(folder.path(), Device::Cpu), load(folder.path(), DEVICE));
            let requests = requests(5, 2, &truncated());
            let expected = generate(&cpu, options(), &requests).unwrap();
            let before = rlt_devices::driver::counts().unwrap();
            let (samples, stats) = sampled(&device, options(), &requests);
            let after = rlt_devices::driver::counts().unwrap();
            same.compare(&expected, &samples);
            // The first step with each number of rows runs without a graph.
            let graphs = (after.graph_launches - before.graph_launches) as usize;
            assert!(graphs > 0 && graphs + 6 > stats.num_steps, "{graphs} of {} steps", stats.num_steps);
            let as_one = on_ranks(2, 60, |ranks| {
                let decoder = load(folder.path(), Device::Cuda(ranks.rank()));
                let mut engine = engine(&ranks, options());
                engine.sync_weights(&decoder, 0).unwrap();
                let mut go_on = |_| ControlFlow::Continue(());
                engine.generate(&decoder, &requests, &Letters, &mut go_on).unwrap()
            });
            same.compare(&expected, &as_one[0]);
            let options = EngineOptions { compute: Some(Kind::BFloat16), ..options() };
            let error = actor_error(&cpu, &requests, &sampled(&device, options, &requests).0);
            assert!(error <= 0.1, "{family} in bf16: {error:.1e}");
        }
        same.check();
    });
}

#[test]
fn models_of_parts_without_kernels_are_refused_on_a_device_by_name() {
    on_device(
        "odd_models_on_device::models_of_parts_without_kernels_are_refused_on_a_device_by_name",
        || {
            let on_device = LoadOptions { device: DEVICE, ..LoadOptions::default() };
            for (family, part) in [("gemma2", "softcapped attention scores"), ("cohere2", "layer norms")] {
                let refused = Decoder::load(&folder(family), &on_device).unwrap_err().to_string();
                assert!(refused.contains(part) && refused.contains("expected a CPU"), "{refused}");
            }
        },
    );
}

#[test]
fn heads_that_are_too_wide_for_a_device_are_refused_by_name() {
    on_device("odd_models_on_device::heads_that_are_too_wide_for_a_device_are_refused_by_name", || {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "LlamaForCausalLM", 258);
        let device = load(folder.path(), DEVICE);
        let mut engine = Engine::new(options());
        engine.sync_weights(&device, 0).unwrap();
        let requests = requests(1, 1, &SamplingParams::greedy());
        let mut go_on = |_| ControlFlow::Continue(());
        let Err(EngineError::Tensor { source, .. }) =
            engine.generate(&device, &requests, &Letters, &mut go_on)
        else {
            panic!("expected a refusal")
        };
        let said = source.to_string();
        assert!(said.contains("reads heads of at most 256") && said.contains("head_dim 258"), "{said}");
    });
}
