//! Clip-Cov and KL-Cov (arXiv 2505.22617): a few tokens whose log-prob and advantage covary most are held
//! back, so that the entropy does not collapse. Which ones is decided over the whole batch, before any
//! gradient.

use super::LossError;
use super::clipped::clipped_surrogate;
use super::policy::{Clip, PolicyLoss, Token, TokenLoss};
use crate::permutation::splitmix64;
use crate::rows::Rows;
use crate::whiten::masked_mean;

/// What [`PolicyLoss::select_tokens`] reads of the whole batch, one value per token.
#[derive(Clone, Copy, Debug)]
pub struct CovarianceInputs<'a> {
    /// All sequences of the update's batch.
    pub rows: &'a Rows,
    /// Their advantages.
    pub advantages: &'a [f64],
    /// Log-probs under the actor now.
    pub logprobs: &'a [f64],
    /// Log-probs under the old policy; `None` when it is the actor.
    pub old_logprobs: Option<&'a [f64]>,
    /// Decides which candidates Clip-Cov takes.
    pub seed: u64,
}

impl PolicyLoss {
    /// Chooses the tokens that a loss of [`super::LossScope::Batch`] treats specially: Clip-Cov at random
    /// among the candidates, KL-Cov the highest. One flag per token, all false for other losses.
    ///
    /// verl decides per micro-batch, so that its choice depends on the split; here it is over the whole
    /// batch.
    ///
    /// # Errors
    /// When a slice does not fit the rows.
    pub fn select_tokens(&self, inputs: &CovarianceInputs<'_>) -> Result<Vec<bool>, LossError> {
        let rows = inputs.rows;
        rows.check_tokens("advantages", inputs.advantages)?;
        rows.check_tokens("logprobs", inputs.logprobs)?;
        if let Some(old_logprobs) = inputs.old_logprobs {
            rows.check_tokens("old_logprobs", old_logprobs)?;
        }
        let mut selected = vec![false; rows.num_tokens()];
        let chosen = match *self {
            Self::ClipCov { clip, ratio, lower, upper } => choose_some(inputs, clip, ratio, lower..upper),
            Self::KlCov { ratio, .. } => choose_highest(inputs, ratio),
            _ => Vec::new(),
        };
        chosen.into_iter().for_each(|token| selected[token] = true);
        Ok(selected)
    }
}

fn covariances(inputs: &CovarianceInputs<'_>) -> Vec<(usize, f64)> {
    let rows = inputs.rows;
    let advantage_mean = masked_mean(rows, inputs.advantages);
    let logprob_mean = masked_mean(rows, inputs.logprobs);
    let covariance =
        |token: usize| (inputs.advantages[token] - advantage_mean) * (inputs.logprobs[token] - logprob_mean);
    rows.valid(0..rows.num_tokens()).map(|token| (token, covariance(token))).collect()
}

fn choose_some(
    inputs: &CovarianceInputs<'_>,
    clip: Clip,
    ratio: f64,
    between: std::ops::Range<f64>,
) -> Vec<usize> {
    let free = |token: usize| {
        let old = inputs.old_logprobs.map_or(inputs.logprobs[token], |old| old[token]);
        let ratio = (inputs.logprobs[token] - old).exp();
        !clipped_surrogate(inputs.advantages[token], ratio, ratio, clip).clipped
    };
    let mut candidates: Vec<usize> = covariances(inputs)
        .into_iter()
        .filter(|(token, covariance)| {
            *covariance > between.start && *covariance < between.end && free(*token)
        })
        .map(|(token, _)| token)
        .collect();
    let wanted = ((ratio * inputs.rows.num_valid_tokens() as f64) as usize).max(1);
    candidates.sort_by_key(|token| splitmix64(inputs.seed, *token as u64));
    candidates.truncate(wanted);
    candidates
}

fn choose_highest(inputs: &CovarianceInputs<'_>, ratio: f64) -> Vec<usize> {
    let mut tokens = covariances(inputs);
    let wanted = ((tokens.len() as f64 * ratio) as usize).max(1);
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
    tokens.into_iter().take(wanted).map(|(token, _)| token).collect()
}

/// Neither clamps the log-ratio nor clips twice; a selected token loses value and gradient.
pub(super) fn clip_cov(token: &Token, clip: Clip, selected: bool) -> TokenLoss {
    if selected {
        return TokenLoss { clipped: true, ..TokenLoss::default() };
    }
    let ratio = token.log_ratio().exp();
    TokenLoss { clipped: false, ..clipped_surrogate(token.advantage, ratio, ratio, clip) }
}

pub(super) fn kl_cov(token: &Token, coefficient: f64, selected: bool) -> TokenLoss {
    let x = token.log_ratio();
    let surrogate = -token.advantage * x.exp();
    let (penalty, slope) =
        if selected && x != 0.0 { (coefficient * x.abs(), coefficient * x.signum()) } else { (0.0, 0.0) };
    TokenLoss { value: surrogate + penalty, gradient: surrogate + slope, ..TokenLoss::default() }
}
