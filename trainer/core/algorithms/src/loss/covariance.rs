//! Clip-Cov and KL-Cov (arXiv 2505.22617): the few tokens whose log-prob and advantage have the highest
//! covariance are clipped or penalised, so that the entropy does not collapse. They are selected over the
//! whole batch, before any gradient.

use super::clipped::clipped_surrogate;
use super::formula::{
    CLIP_HIGH, CLIP_LOW, Clip, DEFAULT_CLIP, PENALTY, RowTerm, Token, TokenFormula, TokenLoss,
};
use super::{CovarianceInputs, LossScope};
use crate::declaration::Parameter;
use crate::permutation::splitmix64;
use crate::whiten::masked_mean;

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

const COVARIANCE_RATIO: Parameter = Parameter::number(
    "covarianceRatio",
    0.0,
    1.0,
    "Share of the tokens that `ClipCov` and `KlCov` hold back; by default 0.0002.",
);

/// Parameter `loss.covarianceLow` of manifests.
pub const COVARIANCE_LOW: Parameter = Parameter::number(
    "covarianceLow",
    -1e6,
    1e6,
    "Covariance above which `ClipCov` may hold a token back; by default 1.",
);

/// Parameter `loss.covarianceHigh` of manifests.
pub const COVARIANCE_HIGH: Parameter = Parameter::number(
    "covarianceHigh",
    -1e6,
    1e6,
    "Covariance below which `ClipCov` may hold a token back; by default 5.",
);

/// verl's default fraction of tokens.
const DEFAULT_RATIO: f64 = 2e-4;
/// verl's default range of covariances.
const DEFAULT_BAND: std::ops::Range<f64> = 1.0..5.0;

formula! {
    /// PPO's clipped ratio, without the few tokens whose log-prob and advantage covary most (Clip-Cov).
    ///
    /// It neither clamps the log-ratio nor clips twice; a selected token loses value and gradient (verl's
    /// `clip_cov`, arXiv 2505.22617).
    pub struct ClipCov {
        /// How far the ratio may fall below 1.
        pub clip_low: f64 = CLIP_LOW, DEFAULT_CLIP;
        /// How far the ratio may rise above 1.
        pub clip_high: f64 = CLIP_HIGH, DEFAULT_CLIP;
        /// Share of the batch's tokens to silence.
        pub ratio: f64 = COVARIANCE_RATIO, DEFAULT_RATIO;
        /// Covariance above which a token may be silenced (verl's `clip_cov_lb`).
        pub lower: f64 = COVARIANCE_LOW, DEFAULT_BAND.start;
        /// Covariance below which a token may be silenced (verl's `clip_cov_ub`).
        pub upper: f64 = COVARIANCE_HIGH, DEFAULT_BAND.end;
    }
}

impl TokenFormula for ClipCov {
    fn scope(&self) -> LossScope {
        LossScope::Batch
    }

    fn choose(&self, inputs: &CovarianceInputs<'_>) -> Vec<usize> {
        let clip = Clip::new(self.clip_low, self.clip_high);
        choose_some(inputs, clip, self.ratio, self.lower..self.upper)
    }

    fn token(&self, token: &Token, _: &RowTerm, selected: bool) -> TokenLoss {
        if selected {
            return TokenLoss { clipped: true, ..TokenLoss::default() };
        }
        let ratio = token.log_ratio().exp();
        let clip = Clip::new(self.clip_low, self.clip_high);
        TokenLoss { clipped: false, ..clipped_surrogate(token.advantage, ratio, ratio, clip) }
    }

    fn ppo_kl(&self, log_ratio: f64) -> f64 {
        -log_ratio
    }
}

formula! {
    /// The ratio, with a penalty on the few tokens whose log-prob and advantage covary most (KL-Cov).
    ///
    /// -A r, with coefficient * |x| added for the tokens of highest covariance (verl's `kl_cov`, arXiv
    /// 2505.22617).
    pub struct KlCov {
        /// Share of the batch's tokens to penalise.
        pub ratio: f64 = COVARIANCE_RATIO, DEFAULT_RATIO;
        /// Weight of the penalty.
        pub coefficient: f64 = PENALTY, 1.0;
    }
}

impl TokenFormula for KlCov {
    fn scope(&self) -> LossScope {
        LossScope::Batch
    }

    fn choose(&self, inputs: &CovarianceInputs<'_>) -> Vec<usize> {
        choose_highest(inputs, self.ratio)
    }

    fn token(&self, token: &Token, _: &RowTerm, selected: bool) -> TokenLoss {
        let x = token.log_ratio();
        let surrogate = -token.advantage * x.exp();
        let (penalty, slope) = if selected && x != 0.0 {
            (self.coefficient * x.abs(), self.coefficient * x.signum())
        } else {
            (0.0, 0.0)
        };
        TokenLoss { value: surrogate + penalty, gradient: surrogate + slope, ..TokenLoss::default() }
    }

    fn ppo_kl(&self, log_ratio: f64) -> f64 {
        log_ratio.abs()
    }
}
