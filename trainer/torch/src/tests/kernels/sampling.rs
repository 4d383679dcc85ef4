//! Draws on the device against `rlt_core::sampling` with the same seeds.

use rlt_core::sampling::{SamplingParams, apply_repetition_penalty, argmax, draw, sample};
use tch::{Device, Kind, Tensor};

use super::{KINDS, floats, in_every_order, ints, randn, words};
use crate::cuda::{Kernels, MarkSeen, SAMPLING_ROW_WORDS, Sample, SamplingRow, sampling_workspace_bytes};

/// A batch of rows as the device has them.
struct Rows {
    logits: Tensor,
    params: Vec<SamplingParams>,
    steps: Vec<i32>,
    seen: Tensor,
    history: Vec<u32>,
    banned: Vec<u32>,
}

const SEED: u64 = 77;

fn row_of(params: &SamplingParams, row: usize) -> SamplingRow {
    SamplingRow {
        seed: SEED + row as u64,
        repetition_penalty: params.repetition_penalty,
        top_p: params.top_p,
        min_p: params.min_p,
        temperature: params.temperature as f32,
        top_k: params.top_k.unwrap_or(0) as u32,
    }
}

impl Rows {
    fn new(kernels: &Kernels, logits: Tensor, params: Vec<SamplingParams>) -> Self {
        let [rows, vocabulary] = logits.size()[..] else { panic!("a matrix of logits") };
        let history: Vec<u32> = (0..vocabulary as u32).step_by(3).collect();
        let seen = Tensor::zeros([rows, (vocabulary + 31) / 32], (Kind::Int, Device::Cpu));
        for row in 0..rows as i32 {
            let tokens: Vec<i32> = history.iter().map(|&token| token as i32).collect();
            let of_row = ints(&vec![row; tokens.len()]);
            MarkSeen { tokens: &ints(&tokens), rows: &of_row, seen_tokens: &seen }.launch(kernels).unwrap();
        }
        let steps = (0..rows as i32).collect();
        Self { logits, params, steps, seen, history, banned: Vec::new() }
    }

    /// Draws tokens and log-probs on the device; rows that are skipped keep -7.
    fn drawn(&self, kernels: &Kernels) -> (Vec<i32>, Vec<f32>) {
        let [rows, vocabulary] = self.logits.size()[..] else { panic!("a matrix of logits") };
        let floats_needed = sampling_workspace_bytes(rows as usize, vocabulary as usize) / 4;
        let workspace = Tensor::full([floats_needed as i64], f64::NAN, (Kind::Float, Device::Cpu));
        self.drawn_in(&workspace, kernels)
    }

    /// Draws as [`Self::drawn`] does, with a workspace that other launches have used.
    fn drawn_in(&self, workspace: &Tensor, kernels: &Kernels) -> (Vec<i32>, Vec<f32>) {
        let [rows, _] = self.logits.size()[..] else { panic!("a matrix of logits") };
        let all: Vec<i64> =
            self.params.iter().enumerate().flat_map(|(row, params)| row_of(params, row).words()).collect();
        let tokens = Tensor::full([rows], -7, (Kind::Int, Device::Cpu));
        let logprobs = Tensor::zeros([rows], (Kind::Float, Device::Cpu));
        Sample {
            logits: &self.logits,
            params: &Tensor::from_slice(&all).view([rows, SAMPLING_ROW_WORDS as i64]),
            steps: &ints(&self.steps),
            seen_tokens: Some(&self.seen),
            banned: &self.banned,
            workspace,
            tokens: &tokens,
            logprobs: &logprobs,
        }
        .launch(kernels)
        .unwrap();
        (words(&tokens), floats(&logprobs))
    }

    /// Draws for a row on the host, and returns the token with its log-prob.
    fn expected(&self, row: usize) -> (i32, f32) {
        let params = &self.params[row];
        let mut logits = floats(&self.logits.get(row as i64));
        let softmax = |logits: &[f32], temperature: f64| {
            (Tensor::from_slice(logits) / temperature).log_softmax(0, Kind::Float)
        };
        let plain = softmax(&logits, params.logprob_temperature());
        apply_repetition_penalty(&mut logits, &self.history, params.repetition_penalty);
        self.banned.iter().for_each(|&token| logits[token as usize] = f32::NEG_INFINITY);
        let token = if params.is_greedy() {
            argmax(&logits)
        } else {
            let probs = floats(&softmax(&logits, params.temperature).exp());
            sample(&probs, params, draw(SEED + row as u64, self.steps[row] as u64))
        };
        (token as i32, plain.double_value(&[i64::from(token)]) as f32)
    }
}

fn all_params() -> Vec<SamplingParams> {
    let base = SamplingParams::default;
    let mut all = vec![
        base(),
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.6, ..base() },
        SamplingParams { top_k: Some(5), ..base() },
        SamplingParams { top_p: 0.8, ..base() },
        SamplingParams { min_p: 0.05, ..base() },
        SamplingParams { repetition_penalty: 1.4, ..base() },
        SamplingParams { repetition_penalty: 0.7, temperature: 0.0, ..base() },
        SamplingParams { top_k: Some(1), ..base() },
        SamplingParams { top_p: 1e-6, ..base() },
    ];
    all.push(SamplingParams {
        temperature: 1.3,
        top_k: Some(20),
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.2,
        ..base()
    });
    all
}

fn assert_draws_of_the_host(kernels: &Kernels, logits: Tensor) {
    assert_are_of_the_host(kernels, &Rows::new(kernels, logits, all_params()));
}

fn assert_are_of_the_host(kernels: &Kernels, rows: &Rows) {
    assert_equal_the_host(rows, rows.drawn(kernels));
}

fn assert_equal_the_host(rows: &Rows, (tokens, logprobs): (Vec<i32>, Vec<f32>)) {
    for row in 0..rows.params.len() {
        let (token, logprob) = rows.expected(row);
        assert_eq!(tokens[row], token, "row {row}: {:?}", rows.params[row]);
        assert!((logprobs[row] - logprob).abs() < 2e-5, "row {row}: {} {logprob}", logprobs[row]);
    }
}

#[test]
fn draws_are_those_of_the_host() {
    in_every_order(|kernels| {
        for (vocabulary, kind) in
            [(1, Kind::Float), (37, Kind::Float), (700, Kind::BFloat16), (9001, Kind::Float)]
        {
            let logits = randn(&[all_params().len() as i64, vocabulary], vocabulary) * 3.0;
            assert_draws_of_the_host(kernels, logits.to_kind(kind));
        }
    });
}

/// The vocabulary of Qwen2.5, with the sampling parameters that sort and those that do not.
#[test]
fn draws_of_a_vocabulary_of_152k_tokens_are_those_of_the_host() {
    in_every_order(|kernels| {
        let params = all_params().split_off(9);
        let logits = randn(&[params.len() as i64, 151_936], 8) * 3.0;
        let rows = Rows::new(kernels, logits.to_kind(Kind::BFloat16), params);
        assert_are_of_the_host(kernels, &rows);
    });
}

#[test]
fn batches_that_shrink_and_grow_share_a_workspace() {
    in_every_order(|kernels| {
        let vocabulary = 301;
        let floats_needed = sampling_workspace_bytes(256, vocabulary) / 4;
        let workspace = Tensor::full([floats_needed as i64], f64::NAN, (Kind::Float, Device::Cpu));
        for num_rows in [4, 2, 4, 1, 256, 31, 64] {
            let logits = randn(&[num_rows, vocabulary as i64], num_rows) * 3.0;
            let params = all_params().into_iter().rev().cycle().take(num_rows as usize).collect();
            let rows = Rows::new(kernels, logits, params);
            let drawn = rows.drawn_in(&workspace, kernels);
            assert_equal_the_host(&rows, drawn);
        }
    });
}

/// The most probable tokens of every row: the others are drawn, with log-probs of the whole vocabulary.
#[test]
fn banned_tokens_are_never_drawn() {
    in_every_order(|kernels| {
        for (vocabulary, banned) in [(37, vec![3, 36]), (9001, vec![0, 8999, 9000, 4])] {
            let logits = randn(&[all_params().len() as i64, vocabulary], vocabulary);
            for token in &banned {
                let _ = logits.narrow(1, i64::from(*token), 1).fill_(5.0);
            }
            let rows = Rows { banned, ..Rows::new(kernels, logits, all_params()) };
            assert_are_of_the_host(kernels, &rows);
        }
    });
}

#[test]
fn the_first_of_equal_tokens_are_kept() {
    in_every_order(|kernels| {
        for kind in KINDS {
            let logits = (randn(&[all_params().len() as i64, 600], 4) * 1.5).round();
            assert_draws_of_the_host(kernels, logits.to_kind(kind));
        }
    });
}

#[test]
fn draws_of_many_seeds_are_those_of_the_host() {
    in_every_order(|kernels| {
        let logits = randn(&[1, 3000], 9).expand([64, 3000], false).contiguous() * 2.0;
        let params = SamplingParams { top_p: 0.95, ..SamplingParams::default() };
        let rows = Rows::new(kernels, logits, vec![params; 64]);
        let (tokens, _) = rows.drawn(kernels);
        let expected: Vec<i32> = (0..64).map(|row| rows.expected(row).0).collect();
        assert_eq!(tokens, expected);
    });
}

#[test]
fn a_drawn_token_is_marked_as_seen_and_an_idle_row_is_unchanged() {
    in_every_order(|kernels| {
        let mut rows = Rows::new(kernels, randn(&[2, 64], 3), vec![SamplingParams::default(); 2]);
        rows.steps = vec![5, -1];
        let _ = rows.seen.zero_();
        let (tokens, _) = rows.drawn(kernels);
        let mut expected = [0u32; 4];
        expected[tokens[0] as usize / 32] |= 1 << (tokens[0] % 32);
        assert_eq!(words(&rows.seen), expected.map(|word| word as i32));
        assert_eq!(tokens[1], -7);
    });
}

#[test]
fn logits_that_are_not_finite_have_no_log_prob() {
    in_every_order(|kernels| {
        for (value, all) in [(f64::NAN, false), (f64::INFINITY, false), (f64::NEG_INFINITY, true)] {
            for params in [SamplingParams::default(), SamplingParams::greedy()] {
                let logits = randn(&[1, 300], 3);
                let _ = logits.narrow(1, 0, if all { 300 } else { 1 }).fill_(value);
                let (_, logprobs) = Rows::new(kernels, logits, vec![params]).drawn(kernels);
                assert!(logprobs[0].is_nan(), "{value}");
            }
        }
        let logits = randn(&[1, 300], 3);
        let _ = logits.narrow(1, 1, 299).fill_(f64::NEG_INFINITY);
        let (tokens, logprobs) = Rows::new(kernels, logits, vec![SamplingParams::default()]).drawn(kernels);
        assert_eq!((tokens[0], logprobs[0]), (0, 0.0), "one token is possible");
    });
}
