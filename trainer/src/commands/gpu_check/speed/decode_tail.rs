//! Measures decoding with 1.5B parameters: full batches, the tail of a rollout with few sequences and long
//! contexts, and the GPU memory that many calls reserve.

use std::ops::ControlFlow;
use std::time::Instant;

use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineOptions, Request};
use rlt_plan::Machine;
use serde_json::json;
use tch::Kind;

use super::super::shapes::{Size, config, on_device};
use super::super::workload::NoText;
use super::super::{Failure, Finding, Report};
use super::decode::bytes_of_step;
use super::prediction::{self, DecodeLoad, with_prediction};
use super::{GPU, measured, peak};

/// Number of sequences per batch and of prompt tokens of each, on a GPU.
const SHAPES: [[usize; 2]; 6] = [[1, 128], [16, 128], [64, 128], [256, 128], [1, 16_000], [8, 16_000]];
/// Number of sequences per batch and of prompt tokens of each, on an emulated device.
const TINY: [[usize; 2]; 6] = [[1, 4], [2, 4], [3, 4], [4, 4], [1, 40], [2, 40]];
/// Number of calls after which free memory is compared with that after the first [`WARM_CALLS`], on a GPU
/// and on an emulated device.
const CALLS: [usize; 2] = [40, 12];
/// Number of calls that reserve the memory which later calls reuse.
const WARM_CALLS: usize = 3;
/// Maximum number of bytes that later calls may reserve in addition, as fragments of the allocator's blocks;
/// at most half of what the first calls have reserved.
const GROWTH_BYTES: i64 = 512 << 20;

pub(in super::super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let config = config(&Size::Large.document())?;
    let options = LoadOptions {
        device: GPU,
        param_dtype: Kind::BFloat16,
        compute: Kind::BFloat16,
        ..LoadOptions::default()
    };
    let decoder = Decoder::from_config(&config, 0, &options)?;
    for [batch, prompt_len] in on_device(SHAPES, TINY) {
        report(rate(&decoder, batch, prompt_len)?)?;
    }
    report(memory(&decoder)?)
}

/// Measures tokens per second as the difference of two completion lengths.
fn rate(decoder: &Decoder, batch: usize, prompt_len: usize) -> Result<Finding, Failure> {
    let [few, many] = on_device([16, 80], [1, 2]);
    let mut engine = engine(decoder, batch)?;
    let mut seconds = |new_tokens| -> Result<f64, Failure> {
        let started = Instant::now();
        generate(&mut engine, decoder, [batch, prompt_len, new_tokens])?;
        Ok(started.elapsed().as_secs_f64())
    };
    // The first run captures graphs.
    seconds(few)?;
    let (short, long) = (seconds(few)?, seconds(many)?);
    let step = on_device(long - short, long) / (many - few) as f64;
    let context = prompt_len as f64 + (few + many) as f64 / 2.0;
    let bytes = bytes_of_step(&decoder.config, batch, context);
    let bound = peak().map(|machine| bytes / machine.memory_bytes_per_second);
    let others = [
        ("model", json!(Size::Large.name())),
        ("batch", json!(batch)),
        ("contextTokens", json!(prompt_len)),
        ("dtype", json!("bf16")),
        ("bytesOfStep", json!(bytes)),
        ("fractionOfBandwidth", json!(bound.map(|bound| bound / step))),
    ];
    let rates = [("tokensPerSecond", batch as f64 / step), ("stepMilliseconds", 1e3 * step)];
    let load = DecodeLoad { batch, prompt_len, new_tokens: [few, many] };
    let predict = |machine: &Machine| prediction::of_decoding(&decoder.config, &load, machine);
    Ok(with_prediction(measured(rates, others), predict))
}

/// Reads the GPU's free memory around many calls of different batch sizes and lengths.
fn memory(decoder: &Decoder) -> Result<Finding, Failure> {
    let (max_batch, calls) = (on_device(32, 3), on_device(CALLS[0], CALLS[1]));
    let mut engine = engine(decoder, max_batch)?;
    // Blocks of earlier engines would serve the first calls, which must show what a call reserves.
    rlt_torch::release_free_memory();
    let free = || -> Result<i64, Failure> {
        Ok(rlt_torch::device_memory(GPU)?.ok_or("a GPU has memory")?.free_bytes as i64)
    };
    let before = free()?;
    let mut after_warm = before;
    for call in 0..calls {
        // The largest batch is first, so that later calls need no more memory.
        let (batch, prompt_len) = (max_batch - call % max_batch, on_device(512, 20) - call % 7);
        generate(&mut engine, decoder, [batch, prompt_len, on_device(8, 3)])?;
        if call + 1 == WARM_CALLS {
            after_warm = free()?;
        }
    }
    Ok(judged(calls, [before, after_warm, free()?]))
}

/// Judges the free memory before all calls, after the first [`WARM_CALLS`] and after all: later calls may
/// reserve little more. A stream for each call would reserve a call's buffers again and again.
fn judged(calls: usize, [before, after_warm, after_all]: [i64; 3]) -> Finding {
    let (taken, grown) = (before - after_warm, after_warm - after_all);
    let allowed = (taken / 2).clamp(0, GROWTH_BYTES);
    let figures = [
        ("model", json!(Size::Large.name())),
        ("calls", json!(calls)),
        ("reservedGigabytes", json!((taken + grown) as f64 / 1e9)),
        ("grownBytes", json!(grown)),
        ("allowedBytes", json!(allowed)),
    ];
    Finding::new(taken > 0 && grown <= allowed, figures)
}

pub(super) fn engine(decoder: &Decoder, max_num_seqs: usize) -> Result<Engine, Failure> {
    let mut engine = Engine::new(EngineOptions { max_num_seqs, ..EngineOptions::default() });
    engine.sync_weights(decoder, 0)?;
    Ok(engine)
}

/// Samples completions of one prompt of random tokens.
pub(super) fn generate(
    engine: &mut Engine,
    decoder: &Decoder,
    [batch, prompt_len, max_new_tokens]: [usize; 3],
) -> Result<(), Failure> {
    let vocab_size = decoder.config.vocab_size as f64;
    let request = Request {
        images: Vec::new(),
        prompt: (0..prompt_len as u64).map(|at| (draw(1, at) * vocab_size) as TokenId).collect(),
        seeds: (0..batch as u64).map(|sample| derive_seed(&[sample])).collect(),
        sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
        max_new_tokens,
    };
    engine.generate(decoder, &[request], &NoText, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::*;

    #[test]
    fn calls_that_keep_reserving_memory_fail() {
        const MIB: i64 = 1 << 20;
        let free_after = |first: i64, later: i64| [8000, 8000 - first, 8000 - first - later].map(|n| n * MIB);
        let status = |first, later| judged(40, free_after(first, later)).status;
        assert_eq!([status(600, 0), status(600, 300), status(600, -20)], [Status::Passed; 3]);
        assert_eq!(status(600, 301), Status::Failed);
        // A leak in each of 40 calls, or in each of libtorch's 32 streams, reserves the same amount again.
        assert_eq!([status(3, 37), status(600 + 3 * 50, 29 * 50)], [Status::Failed; 2]);
        assert_eq!(status(4000, 513), Status::Failed, "half of a large amount is too much");
        assert_eq!(status(0, 0), Status::Failed, "calls that reserve nothing were not measured");
    }
}
