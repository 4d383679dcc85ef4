//! Decoding by graphs gives the bits of launches one by one, and the tokens that the CPU samples.

use std::ops::ControlFlow;

use rlt_core::sampling::{SamplingParams, derive_seed};
use rlt_core::types::{Completion, TokenId};
use serde_json::json;
use tch::{Device, Kind};

use super::workload::NoText;
use super::{Failure, Finding, Findings, shapes};
use crate::model::{Decoder, LoadOptions};
use crate::roles::rollout::{RolloutEngine, RolloutOptions, RolloutRequest};

/// Requests and samples of each, on a GPU and on a device of CPU memory.
const SIZES: [(u64, u64); 2] = [(24, 8), (5, 2)];
/// Samples of a hundred that may differ from the CPU's: draws within rounding noise of a boundary, and all
/// tokens after them.
const DIFFERENT_PERCENT: usize = 5;
/// Largest difference of a log-prob to the CPU's in fp32.
const TOLERANCE: f32 = 1e-4;

pub(super) fn check() -> Result<Findings, Failure> {
    let config = shapes::config(&shapes::tiny())?;
    let mut findings = Findings::new();
    for kind in [Kind::Float, Kind::BFloat16] {
        let decoder = |device| {
            let options = LoadOptions { device, storage: kind, compute: kind, ..LoadOptions::default() };
            Decoder::from_config(&config, 3, &options)
        };
        let device = decoder(Device::Cuda(0))?;
        let [by_graphs, eager] = [true, false].map(|uses_graphs| sampled(&device, uses_graphs));
        let by_graphs = by_graphs?;
        let dtype = if kind == Kind::Float { "fp32" } else { "bf16" };
        findings.push(same_bits(&by_graphs, &eager?).with([("dtype", json!(dtype))]));
        if kind == Kind::Float {
            findings.push(like_the_cpu(&by_graphs, &sampled(&decoder(Device::Cpu)?, false)?));
        }
    }
    Ok(findings)
}

fn sampled(decoder: &Decoder, uses_graphs: bool) -> Result<Vec<Completion>, Failure> {
    let sampling = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let (num_requests, num_samples) = shapes::on_device(SIZES[0], SIZES[1]);
    // Prompts and completions of different lengths, so that rows are left and taken, over more than a block.
    let request = |idx: u64| RolloutRequest {
        images: Vec::new(),
        prompt: (0..3 + idx * 5 % 23).map(|at| (2 + (at * 7 + idx * 13) % 150) as TokenId).collect(),
        seeds: (0..num_samples).map(|sample| derive_seed(&[idx, sample])).collect(),
        sampling: sampling.clone(),
        max_new_tokens: 4 + idx as usize * 3 % 11,
    };
    let requests: Vec<RolloutRequest> = (0..num_requests).map(request).collect();
    let mut engine =
        RolloutEngine::new(RolloutOptions { max_concurrent: 6, uses_graphs, ..RolloutOptions::default() });
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
    let (mut num_different, mut error) = (0, 0.0_f32);
    for (one, other) in device.iter().zip(cpu) {
        if one.tokens != other.tokens {
            num_different += 1;
            continue;
        }
        for (a, b) in one.rollout_logprobs.iter().zip(&other.rollout_logprobs) {
            error = error.max((a - b).abs());
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
