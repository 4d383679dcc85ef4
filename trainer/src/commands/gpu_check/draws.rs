//! Checks that the sampling kernel draws the same tokens as the CPU, from the same logits with the same
//! seeds.

use rlt_core::sampling::{SamplingParams, apply_repetition_penalty, argmax, draw, sample};
use rlt_torch::cuda::{Kernels, MarkSeen, SAMPLING_ROW_WORDS, Sample, SamplingRow, sampling_workspace_bytes};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::shapes::on_device;
use super::{Failure, Finding, Report, worse};

const GPU: Device = Device::Cuda(0);
/// Tolerance of a sum of probabilities in fp32: a draw this close to the boundary between two tokens may
/// return either.
const NOISE: f64 = 1e-5;
/// Largest allowed difference of a log-prob: rounding of fp32 over a vocabulary.
const TOLERANCE: f64 = 1e-4;
/// Number of rows of each setting on a GPU, and on an emulated device.
const ROWS: [i64; 2] = [64, 8];

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let (_no_grad, kernels) = (tch::no_grad_guard(), Kernels::load(0)?);
    let rows = on_device(ROWS[0], ROWS[1]);
    for vocabulary in on_device([32_000, 151_936], [160, 9001]) {
        for kind in [Kind::Float, Kind::BFloat16] {
            tch::manual_seed(vocabulary);
            let logits = (Tensor::randn([rows, vocabulary], (Kind::Float, Device::Cpu)) * 3.0).to_kind(kind);
            for (name, params) in settings() {
                report(compared(&kernels, name, &logits, &params)?)?;
            }
        }
    }
    Ok(())
}

fn settings() -> [(&'static str, SamplingParams); 7] {
    let base = SamplingParams::default;
    [
        ("plain", base()),
        ("greedy", SamplingParams::greedy()),
        ("temperature", SamplingParams { temperature: 0.6, ..base() }),
        ("top-k", SamplingParams { top_k: Some(20), ..base() }),
        ("top-p", SamplingParams { top_p: 0.9, ..base() }),
        ("min-p", SamplingParams { min_p: 0.02, ..base() }),
        (
            "all",
            SamplingParams {
                temperature: 1.3,
                top_k: Some(50),
                top_p: 0.9,
                min_p: 0.01,
                repetition_penalty: 1.2,
                ..base()
            },
        ),
    ]
}

fn compared(
    kernels: &Kernels,
    name: &str,
    logits: &Tensor,
    params: &SamplingParams,
) -> Result<Finding, Failure> {
    let history: Vec<u32> = (0..logits.size()[1] as u32).step_by(3).collect();
    let (tokens, logprobs) = drawn(kernels, logits, params, &history)?;
    let (mut num_different, mut num_at_boundary, mut error) = (0, 0, 0.0_f64);
    for row in 0..logits.size()[0] {
        let (token, truth) = (tokens[row as usize], Row::new(&logits.get(row), params, &history));
        let u = draw(seed(row), row as u64);
        if truth.token(params, u)? != token {
            let is_near = |u: f64| truth.token(params, u.clamp(0.0, 1.0 - f64::EPSILON));
            let at_boundary = is_near(u - NOISE)? == token || is_near(u + NOISE)? == token;
            *(if at_boundary { &mut num_at_boundary } else { &mut num_different }) += 1;
        }
        let logprob = truth.logprobs.get(token as usize).copied().unwrap_or(f64::NAN);
        error = worse((logprob - f64::from(logprobs[row as usize])).abs(), error);
    }
    let figures = [
        ("sampling", json!(name)),
        ("vocabulary", json!(logits.size()[1])),
        ("dtype", json!(if logits.kind() == Kind::Float { "fp32" } else { "bf16" })),
        ("draws", json!(logits.size()[0])),
        ("different", json!(num_different)),
        ("atABoundary", json!(num_at_boundary)),
        ("logprobError", json!(error)),
        ("tolerance", json!(TOLERANCE)),
    ];
    Ok(Finding::new(num_different == 0 && error <= TOLERANCE, figures))
}

fn seed(row: i64) -> u64 {
    77 + row as u64
}

/// Draws one token per row on the device, with the row's index as its step; returns tokens and log-probs.
fn drawn(
    kernels: &Kernels,
    logits: &Tensor,
    params: &SamplingParams,
    history: &[u32],
) -> Result<(Vec<u32>, Vec<f32>), Failure> {
    let [rows, vocabulary] = logits.size()[..] else { return Err("logits are a matrix".into()) };
    let ints = |numbers: &[i32]| Tensor::from_slice(numbers).to_device(GPU);
    let words = |row| SamplingRow {
        seed: seed(row),
        repetition_penalty: params.repetition_penalty,
        top_p: params.top_p,
        min_p: params.min_p,
        temperature: params.temperature as f32,
        top_k: params.top_k.unwrap_or(0) as u32,
    };
    let all: Vec<i64> = (0..rows).flat_map(|row| words(row).words()).collect();
    let seen = Tensor::zeros([rows, (vocabulary + 31) / 32], (Kind::Int, GPU));
    let history: Vec<i32> = history.iter().map(|&token| token as i32).collect();
    for row in 0..rows as i32 {
        MarkSeen { tokens: &ints(&history), rows: &ints(&vec![row; history.len()]), seen_tokens: &seen }
            .launch(kernels)?;
    }
    let floats = sampling_workspace_bytes(rows as usize, vocabulary as usize) / size_of::<f32>();
    let (tokens, logprobs) =
        (Tensor::full([rows], -1, (Kind::Int, GPU)), Tensor::zeros([rows], (Kind::Float, GPU)));
    Sample {
        logits: &logits.to_device(GPU),
        params: &Tensor::from_slice(&all).view([rows, SAMPLING_ROW_WORDS as i64]).to_device(GPU),
        steps: &ints(&(0..rows as i32).collect::<Vec<_>>()),
        seen_tokens: params.has_penalty().then_some(&seen),
        banned: &[],
        workspace: &Tensor::empty([floats as i64], (Kind::Float, GPU)),
        tokens: &tokens,
        logprobs: &logprobs,
    }
    .launch(kernels)?;
    let (tokens, logprobs) = (tokens.to_device(Device::Cpu), logprobs.to_device(Device::Cpu));
    let tokens = rlt_torch::i32_slice(&tokens)?.iter().map(|&token| token as u32).collect();
    Ok((tokens, rlt_torch::f32_slice(&logprobs)?.to_vec()))
}

/// One row of logits, as the CPU draws from it.
struct Row {
    /// Logits with the repetition penalty.
    logits: Vec<f32>,
    /// Probabilities of the penalised logits at the row's temperature.
    probs: Vec<f32>,
    /// Log-probs without the penalty, which are reported.
    logprobs: Vec<f64>,
}

impl Row {
    fn new(logits: &Tensor, params: &SamplingParams, history: &[u32]) -> Self {
        let plain = logits.to_kind(Kind::Double);
        let logprobs = (&plain / params.logprob_temperature()).log_softmax(-1, Kind::Double);
        let mut logits: Vec<f32> = rlt_torch::to_vec(&plain.to_kind(Kind::Float));
        apply_repetition_penalty(&mut logits, history, params.repetition_penalty);
        let penalised = Tensor::from_slice(&logits) / params.temperature.max(f64::MIN_POSITIVE);
        let probs = rlt_torch::to_vec(&penalised.softmax(-1, Kind::Float));
        Self { logits, probs, logprobs: rlt_torch::to_vec(&logprobs) }
    }

    /// Returns the token that is drawn at `u`.
    fn token(&self, params: &SamplingParams, u: f64) -> Result<u32, Failure> {
        Ok(if params.is_greedy() { argmax(&self.logits) } else { sample(&self.probs, params, u.max(0.0)) })
    }
}
