//! Checks that decoding by CUDA graphs gives the bits of single launches and the tokens that the CPU samples.

use std::ops::ControlFlow;

use rlt_core::sampling::{SamplingParams, derive_seed};
use rlt_core::types::{Completion, TokenId};
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineOptions, Request};
use serde_json::json;
use tch::{Device, Kind};

use super::workload::NoText;
use super::{Failure, Finding, Report, shapes, worse};

/// Numbers of requests, and of samples of each, on a GPU and on an emulated device.
const SIZES: [(u64, u64); 2] = [(24, 8), (5, 2)];
/// Number of tokens from which prompts are drawn; every vocabulary is larger.
const FIRST_TOKENS: u64 = 150;
/// Maximum percentage of samples that may differ from the CPU's: a draw within rounding noise of a boundary
/// changes all tokens after it.
const DIFFERENT_PERCENT: usize = 5;
/// Largest allowed difference of a log-prob from the CPU's in fp32.
const TOLERANCE: f64 = 1e-4;

/// Requests of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of requests.
    pub(super) num_requests: u64,
    /// Samples per request.
    pub(super) num_samples: u64,
    /// `[shortest, spread, step]`: request `i` has a prompt of `shortest + i * step % spread` tokens.
    pub(super) prompt_lens: [u64; 3],
}

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let config = shapes::config(&shapes::tiny())?;
    let (num_requests, num_samples) = shapes::on_device(SIZES[0], SIZES[1]);
    let load = Load { num_requests, num_samples, prompt_lens: [3, 23, 5] };
    let options = EngineOptions { max_num_seqs: 6, ..EngineOptions::default() };
    let decoder = |device, kind| -> Result<Decoder, Failure> {
        let options = LoadOptions { device, param_dtype: kind, compute: kind, ..LoadOptions::default() };
        Ok(Decoder::from_config(&config, 3, &options)?)
    };
    compare(decoder, load, &options, report)
}

/// Compares samples by graphs with those by single launches, in fp32 and bf16, and with the CPU's in fp32.
pub(super) fn compare(
    decoder: impl Fn(Device, Kind) -> Result<Decoder, Failure>,
    load: Load,
    options: &EngineOptions,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    for (dtype, kind) in [("fp32", Kind::Float), ("bf16", Kind::BFloat16)] {
        let device = decoder(Device::Cuda(0), kind)?;
        let [by_graphs, eager] = [true, false]
            .map(|uses_graphs| sampled(&device, load, EngineOptions { uses_graphs, ..options.clone() }));
        let by_graphs = by_graphs?;
        report(same_bits(&by_graphs, &eager?).with([("dtype", json!(dtype))]))?;
        if kind == Kind::Float {
            let cpu = sampled(&decoder(Device::Cpu, kind)?, load, options.clone())?;
            report(like_the_cpu(&by_graphs, &cpu))?;
        }
    }
    Ok(())
}

fn sampled(decoder: &Decoder, load: Load, options: EngineOptions) -> Result<Vec<Completion>, Failure> {
    let sampling = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let Load { num_requests, num_samples, prompt_lens: [shortest, spread, step] } = load;
    // Prompts and completions of different lengths, so that rows end and start again at different steps.
    let request = |idx: u64| Request {
        images: Vec::new(),
        prompt: (0..shortest + idx * step % spread)
            .map(|at| (2 + (at * 7 + idx * 13) % FIRST_TOKENS) as TokenId)
            .collect(),
        seeds: (0..num_samples).map(|sample| derive_seed(&[idx, sample])).collect(),
        sampling: sampling.clone(),
        max_new_tokens: 4 + idx as usize * 3 % 11,
    };
    let requests: Vec<Request> = (0..num_requests).map(request).collect();
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0)?;
    let completions = engine.generate(decoder, &requests, &NoText, &mut |_| ControlFlow::Continue(()))?;
    Ok(completions.into_iter().flatten().collect())
}

fn same_bits(by_graphs: &[Completion], eager: &[Completion]) -> Finding {
    let num_different = by_graphs.iter().zip(eager).filter(|(one, other)| one != other).count();
    let figures = [
        ("compared", json!("graphs with single launches")),
        ("samples", json!(by_graphs.len())),
        ("different", json!(num_different)),
    ];
    Finding::new(num_different == 0 && by_graphs.len() == eager.len() && !eager.is_empty(), figures)
}

fn like_the_cpu(device: &[Completion], cpu: &[Completion]) -> Finding {
    let (mut num_different, mut error) = (0, 0.0_f64);
    for (one, other) in device.iter().zip(cpu) {
        if one.tokens != other.tokens {
            num_different += 1;
            continue;
        }
        for (a, b) in one.rollout_logprobs.iter().zip(&other.rollout_logprobs) {
            error = worse(f64::from((a - b).abs()), error);
        }
    }
    let figures = [
        ("compared", json!("the GPU with the CPU")),
        ("dtype", json!("fp32")),
        ("samples", json!(device.len())),
        ("different", json!(num_different)),
        ("allowedPercent", json!(DIFFERENT_PERCENT)),
        ("logprobError", json!(error)),
        ("tolerance", json!(TOLERANCE)),
    ];
    let are_few = 100 * num_different <= DIFFERENT_PERCENT * device.len();
    Finding::new(are_few && error <= TOLERANCE && device.len() == cpu.len(), figures)
}
