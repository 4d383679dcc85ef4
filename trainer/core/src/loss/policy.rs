//! The policy losses and what they share: parameters, scope, and the loss of one token.

use super::clipped::{cispo, dppo, dppo_kl_allows, dppo_tv_allows, vanilla};
use super::covariance::{clip_cov, kl_cov};
use super::sequence::{RowTerm, geo_mean, gspo};
use super::{Aggregation, LossMetrics};

/// Log-ratios are clamped to this before they are exponentiated, except where a loss says otherwise.
const LOG_RATIO_BOUND: f64 = 20.0;

/// How far the ratio may leave 1: it is clipped to `[1 - low, 1 + high]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Below 1 (verl's `clip_ratio_low`).
    pub low: f64,
    /// Above 1 (verl's `clip_ratio_high`).
    pub high: f64,
}

impl Clip {
    pub(super) fn apply(self, ratio: f64) -> f64 {
        ratio.clamp(1.0 - self.low, 1.0 + self.high)
    }
}

/// What must be known before a token of the loss can be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossScope {
    /// Nothing: forward and backward can share one pass over chunks of tokens.
    Token,
    /// The log-probs of the token's whole sequence ([`super::LossInputs::actor_logprobs`]), unless
    /// `old_logprobs` are the actor's own.
    Sequence,
    /// A choice made over the whole batch ([`super::PolicyLoss::select_tokens`]).
    Batch,
}

/// What moves the policy; names are verl's `policy_loss.loss_mode`. Below, x is the log-ratio of actor to old
/// policy, r = exp(x), A the advantage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// `vanilla`, PPO and GRPO: max(-A r, -A clip(r)); with A < 0 at most -A `dual_clip` (arXiv 1912.09729).
    Vanilla {
        /// The trust region.
        clip: Clip,
        /// Ratio above which a negative advantage stops pushing, over 1; `None` for no bound. verl's default
        /// is 3.
        dual_clip: Option<f64>,
    },
    /// `dppo_tv`: -A min(r, cap) log pi where the probability moved by at most `clip` (arXiv 2602.04879).
    DppoTv {
        /// How far the probability itself may move down and up.
        clip: Clip,
        /// Bound of the ratio used as a weight; verl's default is 20 where `clip_ratio_c` is unset.
        ratio_cap: f64,
    },
    /// `dppo_kl`: the same with the Bernoulli KL of the token as the distance.
    DppoKl {
        /// How much KL is allowed for a move down and up.
        clip: Clip,
        /// Bound of the ratio used as a weight.
        ratio_cap: f64,
    },
    /// `gspo`: PPO on the length-normalised ratio of the whole sequence (arXiv 2507.18071); always aggregated
    /// by `seq-mean-token-mean`. The paper clips at 3e-4 and 4e-4.
    Gspo {
        /// The trust region of the sequence ratio.
        clip: Clip,
    },
    /// `sapo`: -A sigmoid(tau (r - 1)) 4 / tau, a soft gate (arXiv 2511.20347); always aggregated by
    /// `seq-mean-token-mean`.
    Sapo {
        /// Temperature where A > 0; verl's default is 1.
        tau_positive: f64,
        /// Temperature elsewhere; verl's default is 1.05.
        tau_negative: f64,
    },
    /// `gpg`: -A log pi (arXiv 2504.02546). With advantage 1 it is the negative log-likelihood of supervised
    /// training.
    Gpg,
    /// `clip_cov`: PPO without the gradient of a few tokens of high covariance (arXiv 2505.22617).
    ClipCov {
        /// The trust region.
        clip: Clip,
        /// Share of the batch's tokens to silence; verl's default is 2e-4.
        ratio: f64,
        /// Covariance above which a token may be silenced; verl's default is 1.
        lower: f64,
        /// Covariance below which a token may be silenced; verl's default is 5.
        upper: f64,
    },
    /// `kl_cov`: -A r, with coefficient * |x| added for the tokens of highest covariance (arXiv 2505.22617).
    KlCov {
        /// Share of the batch's tokens to penalise; verl's default is 2e-4.
        ratio: f64,
        /// Weight of the penalty; verl's default is 1.
        coefficient: f64,
    },
    /// `geo_mean`, GMPO: the geometric mean of a sequence's clipped ratios (arXiv 2507.20673); always the
    /// mean over sequences.
    GeoMean {
        /// Bounds of the log-ratio, below and above 0.
        clip: Clip,
    },
    /// `cispo`: -A stop(clip(r)) log pi; clipped tokens keep their gradient (arXiv 2506.13585).
    Cispo {
        /// Bounds of the weight.
        clip: Clip,
    },
    /// `dro`: -(A log pi - beta / 2 x^2) (arXiv 2405.19107).
    Dro {
        /// Weight of the pull to the old policy, above 0.
        beta: f64,
    },
}

/// One token as a loss sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub logprob: f64,
    pub old_logprob: f64,
    pub advantage: f64,
}

impl Token {
    /// Actor over old policy in log space, unclamped.
    pub(super) fn log_ratio(&self) -> f64 {
        self.logprob - self.old_logprob
    }

    /// The ratio after clamping the log-ratio, and its derivative with respect to the log-prob.
    pub(super) fn ratio(&self) -> (f64, f64) {
        let x = self.log_ratio();
        let ratio = bounded(x).exp();
        (ratio, if x.abs() <= LOG_RATIO_BOUND { ratio } else { 0.0 })
    }
}

fn bounded(log_ratio: f64) -> f64 {
    log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
}

/// Loss of one token before its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TokenLoss {
    pub value: f64,
    /// Derivative of `value` with respect to the token's log-prob.
    pub gradient: f64,
    pub clipped: bool,
    pub clipped_lower: bool,
}

impl PolicyLoss {
    /// verl's name of the loss.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vanilla { .. } => "vanilla",
            Self::DppoTv { .. } => "dppo_tv",
            Self::DppoKl { .. } => "dppo_kl",
            Self::Gspo { .. } => "gspo",
            Self::Sapo { .. } => "sapo",
            Self::Gpg => "gpg",
            Self::ClipCov { .. } => "clip_cov",
            Self::KlCov { .. } => "kl_cov",
            Self::GeoMean { .. } => "geo_mean",
            Self::Cispo { .. } => "cispo",
            Self::Dro { .. } => "dro",
        }
    }

    /// What has to be known before its tokens can be evaluated.
    pub fn scope(&self) -> LossScope {
        match self {
            Self::Gspo { .. } | Self::GeoMean { .. } => LossScope::Sequence,
            Self::ClipCov { .. } | Self::KlCov { .. } => LossScope::Batch,
            _ => LossScope::Token,
        }
    }

    /// The aggregation that the loss is defined with, or the `requested` one where it leaves the choice.
    pub fn aggregation(&self, requested: Aggregation) -> Aggregation {
        match self {
            Self::Gspo { .. } | Self::Sapo { .. } | Self::GeoMean { .. } => Aggregation::SeqMeanTokenMean,
            _ => requested,
        }
    }

    /// Loss of one token that counts. `row` is what [`super::sequence::row_terms`] found out about its
    /// sequence and `selected` whether [`Self::select_tokens`] chose it.
    pub(super) fn token(&self, token: &Token, row: &RowTerm, selected: bool) -> TokenLoss {
        match *self {
            Self::Vanilla { clip, dual_clip } => vanilla(token, clip, dual_clip),
            Self::DppoTv { clip, ratio_cap } => dppo(token, ratio_cap, dppo_tv_allows(token, clip)),
            Self::DppoKl { clip, ratio_cap } => dppo(token, ratio_cap, dppo_kl_allows(token, clip)),
            Self::Gspo { clip } => gspo(token, row, clip),
            Self::Sapo { tau_positive, tau_negative } => sapo(token, tau_positive, tau_negative),
            Self::Gpg => weighted_likelihood(token, token.advantage),
            Self::ClipCov { clip, .. } => clip_cov(token, clip, selected),
            Self::KlCov { coefficient, .. } => kl_cov(token, coefficient, selected),
            Self::GeoMean { clip } => geo_mean(token, row, clip),
            Self::Cispo { clip } => cispo(token, clip),
            Self::Dro { beta } => dro(token, beta),
        }
    }

    /// Whether token weights of the rollout correction multiply the tokens' losses; GMPO folds them into its
    /// sequence term instead.
    pub(super) fn weighs_tokens(&self) -> bool {
        !matches!(self, Self::GeoMean { .. })
    }

    /// Counts a token into the update's metrics.
    pub(super) fn record(&self, metrics: &mut LossMetrics, token: &Token, loss: &TokenLoss) {
        let x = token.log_ratio();
        metrics.ppo_kl_sum += match self {
            Self::KlCov { .. } => x.abs(),
            Self::Gspo { .. } | Self::GeoMean { .. } | Self::ClipCov { .. } => -x,
            _ => -bounded(x),
        };
        metrics.num_clipped += usize::from(loss.clipped);
        metrics.num_clipped_lower += usize::from(loss.clipped_lower);
        metrics.num_tokens += 1;
    }
}

/// -weight * log pi, the form of every loss whose ratio carries no gradient.
pub(super) fn weighted_likelihood(token: &Token, weight: f64) -> TokenLoss {
    TokenLoss { value: -weight * token.logprob, gradient: -weight, ..TokenLoss::default() }
}

fn sapo(token: &Token, tau_positive: f64, tau_negative: f64) -> TokenLoss {
    let tau = if token.advantage > 0.0 { tau_positive } else { tau_negative };
    let (ratio, slope) = token.ratio();
    let gate = 1.0 / (1.0 + (-tau * (ratio - 1.0)).exp());
    TokenLoss {
        value: -token.advantage * gate * 4.0 / tau,
        gradient: -token.advantage * 4.0 * gate * (1.0 - gate) * slope,
        ..TokenLoss::default()
    }
}

fn dro(token: &Token, beta: f64) -> TokenLoss {
    let x = token.log_ratio();
    TokenLoss {
        value: -(token.advantage * token.logprob - 0.5 * beta * x * x),
        gradient: -token.advantage + beta * x,
        ..TokenLoss::default()
    }
}
