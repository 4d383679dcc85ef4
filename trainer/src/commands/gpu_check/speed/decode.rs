//! Measures tokens per second of the rollout by batch size, compared with the time to read the weights and
//! the cache.

use std::ops::ControlFlow;
use std::time::Instant;

use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineOptions, Request};
use rlt_models::ModelConfig;
use serde_json::json;
use tch::Kind;

use super::super::shapes::{llama_135m, on_device};
use super::super::workload::NoText;
use super::super::{Failure, Finding, Report};
use super::prediction::{self, DecodeLoad, with_prediction};
use super::{GPU, measured, peak, weights};

const BATCHES: [usize; 5] = [1, 4, 16, 64, 256];
const BYTES_PER_NUMBER: f64 = 2.0;

pub(in super::super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let config = llama_135m()?;
    let options = LoadOptions {
        device: GPU,
        param_dtype: Kind::BFloat16,
        compute: Kind::BFloat16,
        ..LoadOptions::default()
    };
    let decoder = Decoder::from_config(&config, 0, &options)?;
    BATCHES.into_iter().try_for_each(|batch| report(finding(&config, &decoder, batch)?))
}

/// Numbers of new tokens of two runs, whose difference consists of decoding steps only, and number of prompt
/// tokens.
fn lengths() -> ([usize; 2], usize) {
    on_device(([32, 160], 128), ([1, 2], 4))
}

fn finding(config: &ModelConfig, decoder: &Decoder, batch: usize) -> Result<Finding, Failure> {
    let ([few, many], prompt_len) = lengths();
    let options = EngineOptions { max_num_seqs: batch, ..EngineOptions::default() };
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0)?;
    let mut seconds = |new_tokens| seconds(&mut engine, decoder, batch, new_tokens);
    // The first run is not measured. Of the others the fastest counts, because other load slows them.
    seconds(few)?;
    let mut best = |new_tokens| -> Result<f64, Failure> {
        (0..on_device(3, 1)).try_fold(f64::INFINITY, |best, _| Ok(seconds(new_tokens)?.min(best)))
    };
    let (short, long) = (best(few)?, best(many)?);
    // The time of a few tiny steps is below the noise, so an emulated device reports the full run instead.
    let step = on_device(long - short, long) / (many - few) as f64;
    let context = prompt_len as f64 + (few + many) as f64 / 2.0;
    let bytes = bytes_of_step(config, batch, context);
    let bound = peak().map(|machine| bytes / machine.memory_bytes_per_second);
    let others = [
        ("batch", json!(batch)),
        ("dtype", json!("bf16")),
        ("promptTokens", json!(prompt_len)),
        ("newTokens", json!(many)),
        ("bytesOfStep", json!(bytes)),
        ("fractionOfBandwidth", json!(bound.map(|bound| bound / step))),
    ];
    let rates = [("tokensPerSecond", batch as f64 / step), ("stepMilliseconds", 1e3 * step)];
    let load = DecodeLoad { batch, prompt_len, new_tokens: [few, many] };
    Ok(with_prediction(measured(rates, others), |machine| prediction::of_decoding(config, &load, machine)))
}

/// Returns the number of bytes that a step has to read: every weight once, and the keys and values of each
/// sequence.
pub(super) fn bytes_of_step(config: &ModelConfig, batch: usize, context: f64) -> f64 {
    let of_token = (2 * config.num_layers * config.num_kv_heads * config.head_dim) as f64;
    BYTES_PER_NUMBER * (weights(config).iter().sum::<f64>() + batch as f64 * context * of_token)
}

fn seconds(engine: &mut Engine, decoder: &Decoder, batch: usize, new_tokens: usize) -> Result<f64, Failure> {
    let vocab_size = decoder.config.vocab_size as f64;
    let request = Request {
        images: Vec::new(),
        prompt: (0..lengths().1 as u64).map(|at| (draw(1, at) * vocab_size) as TokenId).collect(),
        seeds: (0..batch as u64).map(|sample| derive_seed(&[sample])).collect(),
        sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
        max_new_tokens: new_tokens,
    };
    let started = Instant::now();
    engine.generate(decoder, &[request], &NoText, &mut |_| ControlFlow::Continue(()))?;
    Ok(started.elapsed().as_secs_f64())
}
