//! Rollout throughput on a 135M-parameter Llama shape with random weights; `--1b` uses 1.1 billion
//! parameters, of which the head is a smaller part.
//!
//! Without options it runs every load and prints the time of each phase. The peers on the same loads are
//! `peers/generate.py` and `peers/generate_ctranslate2.py`; all answer `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rlt_api::spec::{Precision, QuantizationFormat, QuantizationSpec};
use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_engine::{Engine, EngineOptions, Request};
use rlt_models::ModelConfig;
use rlt_trainer::commands::gpu_check::workload::NoText;
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Device, Kind};

/// A load; the peers read the same file.
#[derive(Deserialize)]
struct Load {
    name: String,
    prompt_len: usize,
    samples_per_prompt: usize,
    max_concurrent: usize,
    /// Number of new tokens of each sample; all samples of a prompt are adjacent and have the same number.
    new_tokens: Vec<usize>,
}

fn main() -> anyhow::Result<()> {
    let kind = if measure::has("--bf16") { Kind::BFloat16 } else { Kind::Float };
    let device =
        if measure::has("--cuda") && rlt_torch::load_cuda()? { Device::Cuda(0) } else { Device::Cpu };
    let shape = if measure::has("--1b") {
        include_str!("rollout/model-1b.json")
    } else {
        include_str!("rollout/model.json")
    };
    let config = ModelConfig::from_json(&serde_json::from_str(shape)?)?;
    let loads: Vec<Load> = serde_json::from_str(include_str!("rollout/loads.json"))?;
    let options = LoadOptions { device, param_dtype: kind, compute: kind, ..LoadOptions::default() };
    // `--nf4` and `--int8` quantize the base as a job does.
    let format = [("--nf4", QuantizationFormat::Nf4), ("--int8", QuantizationFormat::Int8)];
    let format = format.into_iter().find(|(flag, _)| measure::has(flag)).map(|(_, format)| format);
    let spec = format.map(|format| QuantizationSpec { format, ..QuantizationSpec::default() });
    let precision = if kind == Kind::BFloat16 { Precision::Bf16 } else { Precision::Fp32 };
    let weights = Weights::random_init(&config, 0).quantized(spec.as_ref(), precision)?;
    let decoder = Decoder::from_weights(&weights, &options)?;
    let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
    measure::serve(&names, |name| {
        let load = loads.iter().find(|load| load.name == name);
        answer(&decoder, load.with_context(|| format!("no load is called {name:?}"))?)
    })
}

fn answer(decoder: &Decoder, load: &Load) -> anyhow::Result<Value> {
    let options = EngineOptions { max_num_seqs: load.max_concurrent, ..EngineOptions::default() };
    let mut engine = Engine::new(options);
    let requests = requests(decoder, load);
    // Packing the weights is measured, too, because a job repeats it after each update.
    measure::measured(|| {
        let started = Instant::now();
        engine.sync_weights(decoder, 0)?;
        let sync_seconds = started.elapsed().as_secs_f64();
        engine.generate(decoder, &requests, &NoText, &mut |_| std::ops::ControlFlow::Continue(()))?;
        let stats = engine.stats();
        Ok(json!({
            "load": load.name,
            "tokens": stats.num_tokens,
            "steps": stats.num_steps,
            "prefilled_tokens": stats.num_prefilled_tokens,
            "sync_seconds": sync_seconds,
            "digest_seconds": stats.digest_time.as_secs_f64(),
            "prefill_seconds": stats.prefill_time.as_secs_f64(),
            "decode_seconds": stats.decode_time.as_secs_f64(),
            "sampling_seconds": stats.sampling_time.as_secs_f64(),
        }))
    })
}

/// Creates one request per prompt, whose samples all have the length of the longest.
fn requests(decoder: &Decoder, load: &Load) -> Vec<Request> {
    let vocab_size = decoder.config.vocab_size as f64;
    let groups = load.new_tokens.chunks(load.samples_per_prompt).enumerate();
    groups
        .map(|(group_idx, lengths)| {
            let token = |position| (draw(group_idx as u64, position) * vocab_size) as TokenId;
            let prompt: Arc<[TokenId]> = (0..load.prompt_len as u64).map(token).collect();
            Request {
                images: Vec::new(),
                prompt,
                seeds: (0..lengths.len() as u64).map(|s| derive_seed(&[group_idx as u64, s])).collect(),
                sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
                max_new_tokens: lengths.iter().copied().max().unwrap_or(1),
            }
        })
        .collect()
}
