//! Rollout throughput on a 135M-parameter Llama shape with random weights.
//!
//! Alone it runs every load once and prints where the time goes. With `--serve` it answers each load named on
//! standard input with one JSON object, so that `rollout/compare.py` can take turns between it and transformers.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rlt_api::plan::model_config::ModelConfig;
use rlt_core::engine::DetokenizeError;
use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::TokenId;
use rlt_trainer::model::{Decoder, LoadOptions};
use rlt_trainer::rollout::{Detokenizer, RolloutEngine, RolloutOptions, RolloutRequest};
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Device, Kind};

/// What to generate; the same file is read by the peer.
#[derive(Deserialize)]
struct Load {
    name: String,
    prompt_len: usize,
    samples_per_prompt: usize,
    max_concurrent: usize,
    /// New tokens of each sample, exactly; the samples of a prompt follow each other.
    new_tokens: Vec<usize>,
}

/// Texts play no part here.
struct NoText;

impl Detokenizer for NoText {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let kind = if has("--bf16") { Kind::BFloat16 } else { Kind::Float };
    let device = if has("--cuda") && rlt_torch::load_cuda()? { Device::Cuda(0) } else { Device::Cpu };
    let config = ModelConfig::from_json(&serde_json::from_str(include_str!("rollout/model.json"))?)?;
    let loads: Vec<Load> = serde_json::from_str(include_str!("rollout/loads.json"))?;
    let options = LoadOptions { device, storage: kind, compute: kind, ..LoadOptions::default() };
    let decoder = Decoder::from_config(&config, 0, &options)?;
    let mut out = std::io::stdout();
    if has("--serve") {
        writeln!(out, "{}", json!({"ready": true, "isa": rlt_torch::kernel_isa()}))?;
        for line in std::io::stdin().lock().lines() {
            let name = line?;
            let load = loads.iter().find(|load| load.name == name.trim());
            let answer = measure(&decoder, load.with_context(|| format!("no load is called {name:?}"))?)?;
            writeln!(out, "{answer}")?;
            out.flush()?;
        }
        return Ok(());
    }
    let chosen = |load: &&Load| !arguments.iter().any(|a| !a.starts_with("--")) || has(&load.name);
    for load in loads.iter().filter(chosen) {
        measure(&decoder, load)?;
        writeln!(out, "{}", measure(&decoder, load)?)?;
    }
    Ok(())
}

fn measure(decoder: &Decoder, load: &Load) -> anyhow::Result<Value> {
    let options = RolloutOptions { max_concurrent: load.max_concurrent, ..RolloutOptions::default() };
    let mut engine = RolloutEngine::new(options);
    let started = Instant::now();
    engine.sync_weights(decoder, 0)?;
    let sync_seconds = started.elapsed().as_secs_f64();
    let requests = requests(decoder, load);
    rlt_torch::reset_peak_rss().ok();
    let (started, cpu_before) = (Instant::now(), cpu_seconds()?);
    engine.generate(decoder, &requests, &NoText, &mut |_| std::ops::ControlFlow::Continue(()))?;
    let seconds = started.elapsed().as_secs_f64();
    let (stats, cpu_seconds) = (engine.stats(), cpu_seconds()? - cpu_before);
    Ok(json!({
        "load": load.name,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens": stats.num_tokens,
        "tokens_per_second": stats.num_tokens as f64 / seconds,
        "steps": stats.num_steps,
        "prefilled_tokens": stats.num_prefilled_tokens,
        "sync_seconds": sync_seconds,
        "digest_seconds": stats.digest_time.as_secs_f64(),
        "prefill_seconds": stats.prefill_time.as_secs_f64(),
        "decode_seconds": stats.decode_time.as_secs_f64(),
        "sampling_seconds": stats.sampling_time.as_secs_f64(),
        "peak_rss_mb": rlt_torch::peak_rss_bytes().map(|bytes| bytes >> 20).unwrap_or(0),
    }))
}

/// Processor time of all threads so far: what stays comparable while other processes run.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("reading processor time")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // proc(5): utime and stime are the 12th and 13th fields after the name, in hundredths of a second.
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / 100.0)
}

/// Every sample its own length, so a prompt's samples are requests of one sample unless their lengths agree.
fn requests(decoder: &Decoder, load: &Load) -> Vec<RolloutRequest> {
    let vocab_size = decoder.config.vocab_size as f64;
    let groups = load.new_tokens.chunks(load.samples_per_prompt).enumerate();
    groups
        .map(|(group_idx, lengths)| {
            let token = |position| (draw(group_idx as u64, position) * vocab_size) as TokenId;
            let prompt: Arc<[TokenId]> = (0..load.prompt_len as u64).map(token).collect();
            RolloutRequest {
                prompt,
                seeds: (0..lengths.len() as u64).map(|s| derive_seed(&[group_idx as u64, s])).collect(),
                sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
                max_new_tokens: lengths.iter().copied().max().unwrap_or(1),
            }
        })
        .collect()
}
