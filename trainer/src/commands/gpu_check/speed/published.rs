//! Measures loads for which others have published figures: a GRPO step and generation with 0.5B parameters,
//! and training with 0.6B parameters.
//!
//! `trainer/gpu-report-page.py` has the figures and the goals, each by the name of its load.

use std::ops::ControlFlow;
use std::time::Instant;

use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::Request;
use serde_json::json;
use tch::Kind;

use super::super::shapes::{Size, config, on_device, qwen3_600m};
use super::super::workload::{GrpoLoad, NoText};
use super::super::{Failure, Finding, Report};
use super::decode_tail::engine;
use super::prediction::{self, GenerationLoad, UpdateLoad, with_prediction};
use super::{GPU, actor, grpo_step, measured, update};

/// Name of the figure with the load of a finding.
const LOAD: &str = "load";
/// Number of calls of generation, of which the fastest counts.
const CALLS: usize = 2;

pub(in super::super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    report(grpo_step::of_load(Size::Small, grpo_load())?.with([(LOAD, json!("grpo-step"))]))?;
    report(generation()?.with([(LOAD, json!("generation"))]))?;
    let mut actor = actor(&config(&qwen3_600m())?)?;
    for (name, [num_sequences, len]) in
        [("training-16k", on_device([2, 16_384], [2, 16])), ("sft-8k", on_device([4, 8192], [2, 8]))]
    {
        let load = UpdateLoad { num_sequences, len, max_tokens: len };
        let finding = update::of_load(&mut actor, &load)?;
        report(finding.with([(LOAD, json!(name)), ("model", json!("0.6B"))]))?;
    }
    Ok(())
}

/// Returns 64 prompts with 5 samples of 330 tokens each.
fn grpo_load() -> GrpoLoad {
    let full = GrpoLoad {
        num_prompts: 64,
        samples_per_prompt: 5,
        prompt_len: 128,
        new_tokens: 330,
        max_tokens: 8192,
    };
    let tiny =
        GrpoLoad { num_prompts: 3, samples_per_prompt: 2, prompt_len: 6, new_tokens: 4, max_tokens: 64 };
    on_device(full, tiny)
}

/// Measures new tokens per second of 256 requests of mixed lengths, prefill included.
fn generation() -> Result<Finding, Failure> {
    let config = config(&Size::Small.document())?;
    let options = LoadOptions {
        device: GPU,
        param_dtype: Kind::BFloat16,
        compute: Kind::BFloat16,
        ..LoadOptions::default()
    };
    let decoder = Decoder::from_config(&config, 0, &options)?;
    let requests = requests(config.vocab_size);
    let mut engine = engine(&decoder, requests.len())?;
    let mut best = f64::INFINITY;
    for _ in 0..CALLS {
        let started = Instant::now();
        engine.generate(&decoder, &requests, &NoText, &mut |_| ControlFlow::Continue(()))?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    let num_prompt_tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let num_new_tokens: usize = requests.iter().map(|request| request.max_new_tokens).sum();
    let others = [
        ("model", json!(Size::Small.name())),
        ("batch", json!(requests.len())),
        ("dtype", json!("bf16")),
        ("promptTokens", json!(num_prompt_tokens)),
        ("newTokens", json!(num_new_tokens)),
    ];
    let rates = [("tokensPerSecond", num_new_tokens as f64 / best), ("generationSeconds", best)];
    let load = GenerationLoad {
        num_requests: requests.len(),
        prompt_len: num_prompt_tokens / requests.len(),
        new_tokens: num_new_tokens / requests.len(),
    };
    let finding = measured(rates, others);
    Ok(with_prediction(finding, |machine| prediction::of_generation(&config, &load, machine)))
}

/// Returns requests whose prompts and completions have 100 to 1024 random tokens each.
fn requests(vocab_size: usize) -> Vec<Request> {
    let (num_requests, [least, most]) = on_device((256_u64, [100, 1024]), (3, [2, 6]));
    let len = |seed: u64, idx: u64| least + (draw(seed, idx) * (most - least + 1) as f64) as usize;
    let prompt = |idx: u64| {
        let token = |at: u64| (draw(derive_seed(&[1, idx]), at) * vocab_size as f64) as TokenId;
        (0..len(2, idx) as u64).map(token).collect()
    };
    let request = |idx: u64| Request {
        images: Vec::new(),
        prompt: prompt(idx),
        seeds: vec![derive_seed(&[3, idx])],
        sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
        max_new_tokens: len(4, idx),
    };
    (0..num_requests).map(request).collect()
}
