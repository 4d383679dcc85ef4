//! Unmerged adapters and quantized bases on a device: samples equal the CPU's, a sync copies only the
//! adapter, and a step has the expected launches.

use std::ops::ControlFlow;
use std::path::Path;

use rlt_api::spec::{LoraSpec, Precision, QuantizationFormat, QuantizationSpec};
use rlt_core::sampling::SamplingParams;
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_devices::Counts;
use rlt_engine::{Engine, EngineOptions, Request};
use rlt_plan::WeightSync;
use tch::{Device, Kind};

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::{DEVICE, Step, assert_step, is_inside, on_device, run_again, sampled};

/// Adapts every linear layer, some of them at another rank and scaling.
fn lora(family: &str) -> LoraSpec {
    let is_fused = family == "phi3";
    let ranks =
        [("o_proj", 3), ("v_proj", 33)].into_iter().filter(|(name, _)| !is_fused || *name == "o_proj");
    let rank_pattern = ranks.map(|(name, rank)| (name.to_owned(), rank)).collect();
    LoraSpec { rank: 4, alpha: 8.0, rank_pattern, ..LoraSpec::default() }
}

/// Loads a fixture with an adapter of [`lora`] that changes the model's results from the start.
fn adapted(device: Device, family: &str, quantization: Option<&QuantizationSpec>, kind: Kind) -> Decoder {
    let weights = Weights::open(&folder(family)).unwrap();
    let precision = if kind == Kind::BFloat16 { Precision::Bf16 } else { Precision::Fp32 };
    let weights = weights.quantized(quantization, precision).unwrap();
    let options = LoadOptions { param_dtype: kind, compute: kind, device, ..LoadOptions::default() };
    let mut decoder = Decoder::from_weights(&weights, &options).unwrap();
    decoder.attach_lora_spec(&lora(family), 5).unwrap();
    change(&decoder, 0.05);
    decoder
}

/// Replaces the values of B, as an update would.
fn change(decoder: &Decoder, size: f64) {
    for (name, matrix) in decoder.trainable_parameters() {
        if name.contains("lora_B") {
            let numbers: Vec<f32> = (0..matrix.numel()).map(|idx| ((idx * 7) % 11) as f32 - 5.0).collect();
            let numbers = tch::Tensor::from_slice(&numbers).view_as(&matrix) * size;
            tch::no_grad(|| matrix.shallow_clone().copy_(&numbers));
        }
    }
}

fn nf4() -> QuantizationSpec {
    QuantizationSpec { double_quantization: true, block_size: 32, ..QuantizationSpec::default() }
}

fn int8() -> QuantizationSpec {
    QuantizationSpec { format: QuantizationFormat::Int8, ..QuantizationSpec::default() }
}

/// Beside modules that keep their precision, in the products of others.
fn fp4() -> QuantizationSpec {
    QuantizationSpec {
        format: QuantizationFormat::Fp4,
        skip_modules: vec!["k_proj".into(), "gate_proj".into(), "down_proj".into()],
        ..QuantizationSpec::default()
    }
}

/// Options of an engine with an unmerged adapter.
fn unmerged() -> EngineOptions {
    EngineOptions { merge_lora: false, ..options() }
}

/// Separate and fused projections, biases, norms of heads, scaled residual sums, dims in another order.
const FAMILIES: [&str; 7] = ["llama", "qwen2", "qwen3", "phi3", "gemma", "granite", "glm"];

#[track_caller]
fn assert_samples_as_cpu(same: &mut SameSamples, [cpu, device]: [&Decoder; 2]) {
    let requests = requests(7, 2, &truncated());
    let expected = generate(cpu, unmerged(), &requests).unwrap();
    same.compare(&expected, &sampled(device, unmerged(), &requests).0);
    // Passes have few rows, or one row.
    for (max_num_seqs, max_num_batched_tokens) in [(3, 6), (1, 40)] {
        let few = EngineOptions { max_num_seqs, max_num_batched_tokens, ..unmerged() };
        same.compare(&expected, &sampled(device, few, &requests).0);
    }
}

#[test]
fn a_device_samples_as_the_cpu_does_with_an_unmerged_adapter() {
    on_device("adapters_on_device::a_device_samples_as_the_cpu_does_with_an_unmerged_adapter", || {
        let mut same = SameSamples::default();
        for family in FAMILIES {
            let decoders = [Device::Cpu, DEVICE].map(|device| adapted(device, family, None, Kind::Float));
            assert_samples_as_cpu(&mut same, decoders.each_ref());
        }
        same.check();
    });
}

#[test]
fn a_device_samples_as_the_cpu_does_with_a_quantized_base() {
    on_device("adapters_on_device::a_device_samples_as_the_cpu_does_with_a_quantized_base", || {
        let mut same = SameSamples::default();
        for (idx, family) in FAMILIES.into_iter().enumerate() {
            let specs = [nf4(), int8(), fp4()];
            // All formats for the first, one each for the others.
            for spec in
                specs.iter().skip(if idx == 0 { 0 } else { idx % 2 }).take(if idx == 0 { 3 } else { 1 })
            {
                let of = |device| adapted(device, family, Some(spec), Kind::Float);
                assert_samples_as_cpu(&mut same, [&of(Device::Cpu), &of(DEVICE)]);
            }
        }
        same.check();
    });
}

#[test]
fn in_bfloat16_both_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu() {
    on_device(
        "adapters_on_device::in_bfloat16_both_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu",
        || {
            let requests = requests(5, 2, &truncated());
            for quantization in [None, Some(nf4()), Some(int8())] {
                for family in ["llama", "phi3"] {
                    let of = |device| adapted(device, family, quantization.as_ref(), Kind::BFloat16);
                    let (cpu, device) = (of(Device::Cpu), of(DEVICE));
                    for max_num_batched_tokens in [4096, 6] {
                        let options = EngineOptions { max_num_batched_tokens, ..unmerged() };
                        let samples = sampled(&device, options.clone(), &requests).0;
                        let error = actor_error(&cpu, &requests, &samples);
                        let of_cpu =
                            actor_error(&cpu, &requests, &generate(&cpu, options, &requests).unwrap());
                        // The bound is two roundings of a logit of 8. The CPU rounds at the same operations
                        // as the actor.
                        let allowed = (3.0 * of_cpu).clamp(0.13, 0.24);
                        assert!(
                            error <= allowed,
                            "{family}, {quantization:?}: {error:.1e} above {allowed:.1e}"
                        );
                    }
                }
            }
        },
    );
}

#[test]
fn a_sync_transfers_only_the_adapter_and_graphs_equal_single_launches_bitwise() {
    on_device(
        "adapters_on_device::a_sync_transfers_only_the_adapter_and_graphs_equal_single_launches_bitwise",
        || {
            for quantization in [None, Some(nf4())] {
                for family in ["llama", "phi3"] {
                    let decoder = adapted(DEVICE, family, quantization.as_ref(), Kind::BFloat16);
                    let requests = requests(3, 2, &SamplingParams::default());
                    let mut engine = Engine::new(unmerged());
                    let mut sample = |decoder: &Decoder, version: u64| {
                        engine.sync_weights(decoder, version).unwrap();
                        let synced = engine.synced_bytes() as u64;
                        let mut go_on = |_| ControlFlow::Continue(());
                        let completions = engine.generate(decoder, &requests, &Letters, &mut go_on).unwrap();
                        engine.sleep();
                        (completions, synced)
                    };
                    let (before, _) = sample(&decoder, 0);
                    change(&decoder, -0.05);
                    let (after, synced) = sample(&decoder, 1);
                    let planned = WeightSync::of_adapter(&lora(family), &decoder.config, 1);
                    assert_eq!(synced, planned.bytes, "{family}");
                    assert_ne!(tokens(&after), tokens(&before), "{family}: the adapter takes part");
                    let eager = EngineOptions { uses_graphs: false, ..unmerged() };
                    assert_eq!(after, sampled(&decoder, eager, &requests).0, "{family}");
                }
            }
        },
    );
}

#[test]
fn a_tensor_parallel_group_samples_with_an_unmerged_adapter() {
    on_device("adapters_on_device::a_tensor_parallel_group_samples_with_an_unmerged_adapter", || {
        let mut same = SameSamples::default();
        for family in ["qwen3", "phi3"] {
            let requests = requests(5, 2, &truncated());
            let expected =
                generate(&adapted(Device::Cpu, family, None, Kind::Float), unmerged(), &requests).unwrap();
            let of_ranks = on_ranks(2, 60, |ranks| {
                let decoder = adapted(Device::Cuda(ranks.rank()), family, None, Kind::Float);
                let mut engine = engine(&ranks, unmerged());
                engine.sync_weights(&decoder, 0).unwrap();
                let mut go_on = |_| ControlFlow::Continue(());
                engine.generate(&decoder, &requests, &Letters, &mut go_on).unwrap()
            });
            assert_eq!(of_ranks[0], of_ranks[1], "{family}");
            same.compare(&expected, &of_ranks[0]);
        }
        same.check();
    });
}

const COUNTED: &str =
    "adapters_on_device::a_step_has_two_launches_more_for_each_product_and_one_for_many_rows_of_codes";

/// Samples in the process `COUNTED`: `batch` sequences of `num_tokens` tokens.
fn counted(batch: u64, num_tokens: usize, is_quantized: bool, uses_graphs: bool) {
    let quantization = is_quantized.then(nf4);
    let device = adapted(DEVICE, "llama", quantization.as_ref(), Kind::Float);
    let request = Request {
        images: Vec::new(),
        prompt: (5..16).collect(),
        seeds: (0..batch).collect(),
        sampling: SamplingParams { ignore_eos: true, ..truncated() },
        max_new_tokens: num_tokens,
    };
    let merge_lora = false;
    let options = EngineOptions { max_num_seqs: 64, uses_graphs, merge_lora, ..EngineOptions::default() };
    let (completions, _) = sampled(&device, options, &[request]);
    assert!(completions[0].iter().all(|completion| completion.tokens.len() == num_tokens));
}

fn counts(report: &Path, batch: usize, num_tokens: usize, is_quantized: bool, uses_graphs: bool) -> Counts {
    let numbers = [
        ("RLT_TEST_BATCH", batch),
        ("RLT_TEST_TOKENS", num_tokens),
        ("RLT_TEST_QUANTIZED", usize::from(is_quantized)),
        ("RLT_TEST_GRAPHS", usize::from(uses_graphs)),
    ];
    run_again(COUNTED, Some(report), &numbers.map(|(name, number)| (name, number.to_string())));
    Counts::read(report).unwrap()
}

#[test]
fn a_step_has_two_launches_more_for_each_product_and_one_for_many_rows_of_codes() {
    let variable = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    if is_inside() {
        let [is_quantized, uses_graphs] =
            ["QUANTIZED", "GRAPHS"].map(|name| variable(&format!("RLT_TEST_{name}")) == 1);
        let (batch, num_tokens) = (variable("RLT_TEST_BATCH") as u64, variable("RLT_TEST_TOKENS"));
        return counted(batch, num_tokens, is_quantized, uses_graphs);
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("counts.json");
    const LAYERS: u64 = 2;
    // A batch of 33 sequences is padded to 64 rows.
    for (batch, is_quantized, uses_graphs, launches, graphs) in [
        (1, false, false, 17 * LAYERS + 8, 0),
        (1, true, false, 17 * LAYERS + 8, 0),
        (16, true, false, 17 * LAYERS + 8, 0),
        (33, true, false, 21 * LAYERS + 8, 0),
        (33, false, false, 17 * LAYERS + 8, 0),
        (16, true, true, 0, 1),
        (33, true, true, 0, 1),
    ] {
        let [short, long] =
            [6, 8].map(|num_tokens| counts(&report, batch, num_tokens, is_quantized, uses_graphs));
        let case = format!("batch {batch}, quantized: {is_quantized}, graphs: {uses_graphs}");
        assert_step([&short, &long], 1, Step { waits: 1, launches, graphs }, &case);
    }
}
