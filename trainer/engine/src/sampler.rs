//! Sampling on a CPU: from logits to tokens and their log-probs, a batch at a time.
//!
//! Softmax and log-sum run vectorised over the whole batch. Each row then needs one pass over its
//! probabilities in [`rlt_core::sampling`], which documents the parameters.

use rlt_core::engine::Sequence;
use rlt_core::permutation::splitmix64;
use rlt_core::sampling::{self, SamplingParams};
use rlt_core::types::TokenId;
use tch::{Kind, Tensor};

use super::EngineError;

/// A drawn token with its log-prob under the untruncated distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampledToken {
    pub(super) token: TokenId,
    pub(super) logprob: f32,
}

/// A non-negative digest of drawn tokens and log-probs, by which ranks compare them.
pub(super) fn digest(drawn: &[SampledToken]) -> i64 {
    let word = |drawn: &SampledToken| u64::from(drawn.token) << 32 | u64::from(drawn.logprob.to_bits());
    let digest = drawn.iter().fold(drawn.len() as u64, |digest, drawn| splitmix64(digest, word(drawn)));
    (digest >> 1) as i64
}

/// Draws the next token of each row of `logits_bv` (f32 [b, v]); `params` gives each row's parameters. Tokens
/// in `banned` are never drawn; the log-probs of the others are still those of the full vocabulary.
pub(super) fn draw_rows(
    logits_bv: &Tensor,
    sequences: &[Sequence],
    params: &[&SamplingParams],
    banned: &[TokenId],
) -> Result<Vec<SampledToken>, EngineError> {
    let reach = |source| EngineError::Tensor { what: "logits".into(), source };
    let logprobs_bv = scaled(logits_bv, params).log_softmax(1, Kind::Float).contiguous();
    let has_penalty = params.iter().any(|p| p.has_penalty());
    let probs_bv = if has_penalty || !banned.is_empty() {
        let logits_bv = penalised(logits_bv, sequences, params)?;
        scaled(&without(logits_bv, banned), params).softmax(1, Kind::Float)
    } else {
        logprobs_bv.exp()
    };
    let probs_bv = probs_bv.contiguous();
    let vocab_size = logits_bv.size()[1] as usize;
    let logprobs = rlt_torch::f32_slice(&logprobs_bv).map_err(reach)?.chunks_exact(vocab_size);
    let probs = rlt_torch::f32_slice(&probs_bv).map_err(reach)?.chunks_exact(vocab_size);
    let rows = sequences.iter().zip(params).zip(probs.zip(logprobs));
    let drawn = rows.map(|((sequence, params), (probs_v, logprobs_v))| {
        let token = draw_row(probs_v, params, sequence);
        SampledToken { token, logprob: logprobs_v[token as usize] }
    });
    Ok(drawn.collect())
}

fn draw_row(probs_v: &[f32], params: &SamplingParams, sequence: &Sequence) -> TokenId {
    if params.is_greedy() {
        return sampling::argmax(probs_v);
    }
    let u = sampling::draw(sequence.seed, sequence.completion().len() as u64);
    sampling::sample(probs_v, params, u)
}

/// Logits divided by each row's temperature; greedy rows are not divided.
fn scaled(logits_bv: &Tensor, params: &[&SamplingParams]) -> Tensor {
    let temperatures: Vec<f32> = params.iter().map(|p| p.logprob_temperature() as f32).collect();
    if temperatures.iter().all(|&t| t == 1.0) {
        return logits_bv.shallow_clone();
    }
    logits_bv / Tensor::from_slice(&temperatures).unsqueeze(1)
}

/// Logits in which the tokens of `banned` are minus infinity.
fn without(mut logits_bv: Tensor, banned: &[TokenId]) -> Tensor {
    if banned.is_empty() {
        return logits_bv;
    }
    let ids: Vec<i64> = banned.iter().map(|token| i64::from(*token)).collect();
    logits_bv.index_fill_(1, &Tensor::from_slice(&ids), f64::NEG_INFINITY)
}

/// A copy of the logits with each row's repetition penalty applied.
fn penalised(
    logits_bv: &Tensor,
    sequences: &[Sequence],
    params: &[&SamplingParams],
) -> Result<Tensor, EngineError> {
    let vocab_size = logits_bv.size()[1] as usize;
    let mut copy = logits_bv.contiguous().copy();
    let rows = rlt_torch::f32_slice_mut(&mut copy)
        .map_err(|source| EngineError::Tensor { what: "logits".into(), source })?
        .chunks_exact_mut(vocab_size);
    for (logits_v, (sequence, params)) in rows.zip(sequences.iter().zip(params)) {
        sampling::apply_repetition_penalty(logits_v, sequence.tokens(), params.repetition_penalty);
    }
    Ok(copy)
}
