//! Sampling of the next token: the parameters, and the draw itself from one row of probabilities.
//!
//! The order of steps is that of Hugging Face transformers, with whose sampling users compare:
//! ```text
//! logits -> repetition penalty -> / temperature -> softmax -> top-k -> top-p -> min-p -> draw
//! ```
//! - repetition penalty `r`: the logit of every token of prompt and completion is divided by `r` if positive
//!   and multiplied by it if negative (Keskar et al. 2019, CTRL);
//! - temperature 0 takes the largest logit (the first of equal ones) and ignores top-k, top-p and min-p;
//! - top-k keeps the `k` most probable tokens, and those tied with the last of them;
//! - top-p keeps, of the tokens left by top-k, the fewest most probable ones whose share of the probability
//!   reaches `p`: the token that crosses the threshold is included; of equal ones the lower token id comes
//!   first;
//! - min-p keeps tokens at least `min_p` times as probable as the most probable one.
//!
//! The draw inverts the cumulative distribution **in the order of the vocabulary** at `u = draw(seed,
//! position)`. `u` depends on nothing else, so a sample is the same in any batch. Since the order is not by
//! probability, rounding noise `e` in the probabilities moves a boundary by about `e`, never by a whole
//! token.
//!
//! The reported log-prob is that of the untruncated, unpenalised distribution (what a trainer recomputes):
//! log softmax of logits / temperature, at temperature 1 if the temperature is 0. The caller has it from the
//! same softmax.

mod bits;
mod seed;
mod truncation;

pub use seed::{derive_seed, draw};
use serde::{Deserialize, Serialize};
use truncation::Cut;

use crate::types::TokenId;

/// Parameters of how tokens are drawn and when a sample ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Divisor of the logits, at least 0; 0 takes the most probable token.
    #[serde(with = "bits")]
    pub temperature: f64,
    /// Number of most probable tokens to draw from; `None` means all.
    pub top_k: Option<usize>,
    /// Fraction of the probability to draw from, in (0, 1]; 1 means all.
    #[serde(with = "bits")]
    pub top_p: f64,
    /// Smallest probability relative to the most probable token, in \[0, 1\]; 0 means no bound.
    #[serde(with = "bits")]
    pub min_p: f64,
    /// Penalty of tokens that occurred: above 1 discourages them, below 1 encourages them, 1 does nothing.
    #[serde(with = "bits")]
    pub repetition_penalty: f64,
    /// Token ids that end a sample, in addition to the model's end of sequence.
    pub stop_token_ids: Vec<TokenId>,
    /// Strings that end a sample.
    pub stop: Vec<String>,
    /// Whether the model's end of sequence is a token like any other.
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop_token_ids: Vec::new(),
            stop: Vec::new(),
            ignore_eos: false,
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("sampling parameter {name} is {value}, must be {allowed}")]
pub struct SamplingError {
    /// Name of the parameter.
    pub name: &'static str,
    /// Value that was given.
    pub value: f64,
    /// Allowed values, in words.
    pub allowed: &'static str,
}

impl SamplingParams {
    /// Makes the parameters of greedy decoding.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the most probable token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Temperature at which the reported log-probs are computed.
    pub fn logprob_temperature(&self) -> f64 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    /// Whether a repetition penalty applies.
    pub fn has_penalty(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Checks that every parameter is in its range.
    ///
    /// # Errors
    /// [`SamplingError`] with the first parameter outside its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite_and = |value: f64, ok: bool| value.is_finite() && ok;
        let top_k = self.top_k.map_or(1.0, |k| k as f64);
        let stop_len = self.stop.iter().map(String::len).min().unwrap_or(1) as f64;
        let checks = [
            ("temperature", self.temperature, self.temperature >= 0.0, "at least 0"),
            ("top_k", top_k, top_k >= 1.0, "at least 1"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0"),
            ("the length of a stop string", stop_len, stop_len >= 1.0, "at least 1"),
        ];
        match checks.into_iter().find(|&(_, value, ok, _)| !finite_and(value, ok)) {
            Some((name, value, _, allowed)) => Err(SamplingError { name, value, allowed }),
            None => Ok(()),
        }
    }
}

/// Applies the repetition penalty to one row of logits, once for each distinct token of `tokens`.
///
/// `logits` is `[vocabulary]`; ids beyond it are ignored.
pub fn apply_repetition_penalty(logits: &mut [f32], tokens: &[TokenId], penalty: f64) {
    let mut seen = tokens.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for token in seen {
        if let Some(logit) = logits.get_mut(token as usize) {
            let factor = if *logit > 0.0 { 1.0 / penalty } else { penalty };
            *logit = (f64::from(*logit) * factor) as f32;
        }
    }
}

/// Returns the index of the largest logit, the first of equal ones.
pub fn argmax(logits: &[f32]) -> TokenId {
    // Lane-wise maximum first: the compiler vectorises it, but not a search that tracks an index.
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == largest).unwrap_or(0) as TokenId
}

/// Draws one token from `probs` at `u` in [0, 1).
///
/// `probs` is `[vocabulary]`: the softmax of penalised logits / temperature, in f32; its sum need not be
/// exactly 1. Never returns a token of probability 0.
pub fn sample(probs: &[f32], params: &SamplingParams, u: f64) -> TokenId {
    let cut = Cut::of(probs, params);
    let token = if cut.keeps_all() {
        invert_cumulative(probs, u, |_, p| p)
    } else {
        invert_cumulative(probs, u, |idx, p| if cut.keeps(idx, p) { p } else { 0.0 })
    };
    token as TokenId
}

/// Number of tokens whose weights are summed together in the search for the drawn token.
const CHUNK: usize = 64;

/// Returns the first index at which the cumulative weight passes `u` times the total, summed in f64.
fn invert_cumulative(probs: &[f32], u: f64, weight: impl Fn(usize, f32) -> f32) -> usize {
    let chunk_sum = |(chunk_idx, chunk): (usize, &[f32])| -> f64 {
        let mut lanes = [0.0f64; 4];
        for (i, &p) in chunk.iter().enumerate() {
            lanes[i % 4] += f64::from(weight(chunk_idx * CHUNK + i, p));
        }
        lanes.iter().sum()
    };
    let sums: Vec<f64> = probs.chunks(CHUNK).enumerate().map(chunk_sum).collect();
    let target = u * sums.iter().sum::<f64>();
    let mut below = 0.0;
    // If rounding leaves the target unreached, the last token with a positive weight is drawn.
    let mut last_positive = 0;
    for (chunk_idx, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        last_positive = chunk_idx;
        if below + sum > target {
            break;
        }
        below += sum;
    }
    let start = last_positive * CHUNK;
    let mut drawn = start;
    for (idx, &p) in probs.iter().enumerate().skip(start).take(CHUNK) {
        let w = f64::from(weight(idx, p));
        if w > 0.0 {
            drawn = idx;
            below += w;
            if below > target {
                break;
            }
        }
    }
    drawn
}

#[cfg(test)]
mod tests;
