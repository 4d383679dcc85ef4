//! What the benchmarks of training share: the 135M-parameter Llama as an actor, the arithmetic that a job runs with, and
//! answering measurements one line at a time. What is measured is each benchmark's own business.

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::Context;
use rlt_api::plan::model_config::ModelConfig;
use rlt_api::spec::LoraInit;
use rlt_trainer::actor::{Actor, ActorOptions};
use rlt_trainer::model::{Decoder, LoadOptions, LoraConfig, ModuleMatch};
use rlt_trainer::optim::{AdamW, AdamWOptions};
use serde_json::{Value, json};

/// Whether an argument was given.
pub(crate) fn has(name: &str) -> bool {
    std::env::args().skip(1).any(|argument| argument == name)
}

/// The arithmetic of a job that sets nothing: full fp32 by the fastest library.
pub(crate) fn prepare() -> anyhow::Result<()> {
    rlt_torch::reuse_large_buffers();
    let precision = match rlt_torch::cpu_has_amx() {
        true => rlt_torch::MatmulPrecision::Highest,
        false => rlt_torch::MatmulPrecision::Medium,
    };
    rlt_torch::set_float32_matmul_precision(precision)?;
    Ok(())
}

/// Random weights, all of them trained, or with `--lora` an adapter of rank 16 on every linear layer. Activations are
/// kept, or recomputed with `--checkpointing`.
pub(crate) fn actor() -> anyhow::Result<Actor> {
    let config = ModelConfig::from_json(&serde_json::from_str(include_str!("../rollout/model.json"))?)?;
    let options = LoadOptions { trainable: !has("--lora"), ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 0, &options)?;
    if has("--lora") {
        let lora = LoraConfig {
            rank: 16,
            alpha: 32.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
        };
        decoder.attach_lora(&lora, 0)?;
    }
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default())?;
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 256,
        activation_checkpointing: has("--checkpointing"),
        max_grad_norm: 1.0,
    };
    Ok(Actor::new(decoder, optimizer, options))
}

/// With `--serve` one measurement for each line of standard input; alone a warm-up and one measurement.
pub(crate) fn serve(mut work: impl FnMut() -> anyhow::Result<Value>) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    if !has("--serve") {
        measured(&mut work)?;
        return Ok(writeln!(out, "{}", measured(&mut work)?)?);
    }
    writeln!(out, "{}", json!({"ready": true, "loaded_rss_mb": rlt_torch::rss_bytes()? >> 20}))?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        line?;
        writeln!(out, "{}", measured(&mut work)?)?;
        out.flush()?;
    }
    Ok(())
}

/// What `work` tells of itself, with its time, its processor time and its peak of memory.
fn measured(work: &mut impl FnMut() -> anyhow::Result<Value>) -> anyhow::Result<Value> {
    // Without the kernel's counter the peak is that of the whole life of the process.
    rlt_torch::reset_peak_rss().ok();
    let (started, cpu_before) = (Instant::now(), cpu_seconds()?);
    let mut result = work()?;
    let seconds = started.elapsed().as_secs_f64();
    let num_tokens = result["tokens"].as_f64().context("a measurement counts its tokens")?;
    result["seconds"] = json!(seconds);
    result["cpu_seconds"] = json!(cpu_seconds()? - cpu_before);
    result["tokens_per_second"] = json!(num_tokens / seconds);
    result["peak_rss_mb"] = json!(rlt_torch::peak_rss_bytes()? >> 20);
    Ok(result)
}

/// Processor time of all threads so far: what stays comparable while other processes run.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("reading processor time")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // proc(5): utime and stime are the 12th and 13th fields after the name, in hundredths of a second.
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / 100.0)
}
