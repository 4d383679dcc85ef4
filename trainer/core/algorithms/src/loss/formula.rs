//! The trait of policy losses, and the types and parameters that their formulas share.

use super::{Aggregation, CovarianceInputs, LossInputs, LossMetrics};
use crate::declaration::Parameter;

/// Bound to which log-ratios are clamped before they are exponentiated, unless a loss says otherwise.
const LOG_RATIO_BOUND: f64 = 20.0;

/// Clip of the ratio, to `[1 - low, 1 + high]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clip {
    /// Largest distance below 1 (verl's `clip_ratio_low`).
    pub low: f64,
    /// Largest distance above 1 (verl's `clip_ratio_high`).
    pub high: f64,
}

impl Clip {
    pub(super) fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    pub(super) fn apply(self, ratio: f64) -> f64 {
        ratio.clamp(1.0 - self.low, 1.0 + self.high)
    }
}

/// Values that a loss must know to evaluate one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossScope {
    /// Nothing else: forward and backward can share one pass over chunks of tokens.
    Token,
    /// The log-probs of the token's sequence ([`super::LossInputs::actor_logprobs`]), unless `old_logprobs`
    /// are the actor's own.
    Sequence,
    /// A selection over the whole batch ([`super::PolicyLoss::select_tokens`]).
    Batch,
}

/// Parameter `loss.clipLow` of manifests.
pub const CLIP_LOW: Parameter =
    Parameter::number("clipLow", 0.0, 1.0, "How far the ratio may fall below 1; by default the preset's.");

/// Parameter `loss.clipHigh` of manifests.
pub const CLIP_HIGH: Parameter = Parameter::number(
    "clipHigh",
    0.0,
    1000.0,
    "How far the ratio may rise above 1; by default the preset's.",
);

/// PPO's clip, used if neither manifest nor preset give one.
pub(super) const DEFAULT_CLIP: f64 = 0.2;

/// Parameter `loss.dualClip` of manifests.
pub const DUAL_CLIP: Parameter = Parameter::number(
    "dualClip",
    1.0,
    1000.0,
    "Bound on the loss of tokens with a negative advantage, as a multiple of it (`Vanilla`); by default none. For \
     `DppoTv` and `DppoKl` the cap on the importance weight; by default 20.",
);

/// Parameter `loss.penalty` of manifests.
pub const PENALTY: Parameter = Parameter::number(
    "penalty",
    1e-9,
    1000.0,
    "Strength of the penalty in `Dro` (by default 0.1) and `KlCov` (by default 1).",
);

/// The values of one token that a loss reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub logprob: f64,
    pub old_logprob: f64,
    pub advantage: f64,
}

impl Token {
    /// Log-ratio of actor to old policy, not clamped.
    pub(super) fn log_ratio(&self) -> f64 {
        self.logprob - self.old_logprob
    }

    /// Returns the ratio after clamping the log-ratio, and its derivative with respect to the log-prob.
    pub(super) fn ratio(&self) -> (f64, f64) {
        let x = self.log_ratio();
        let ratio = bounded(x).exp();
        (ratio, if x.abs() <= LOG_RATIO_BOUND { ratio } else { 0.0 })
    }
}

fn bounded(log_ratio: f64) -> f64 {
    log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
}

/// Loss of one token, before its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TokenLoss {
    pub value: f64,
    /// Derivative of `value` with respect to the token's log-prob.
    pub gradient: f64,
    pub clipped: bool,
    pub clipped_lower: bool,
}

/// Shared terms of one sequence's tokens. They are constants for the gradient, except that a token's own
/// contribution to the ratio has the derivative that its loss applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowTerm {
    /// Ratio of the sequence, 1 if the actor is the old policy.
    pub ratio: f64,
    /// Whether the ratio has a gradient, because its bound was not reached.
    pub alive: bool,
    /// Mean advantage times the geometric mean of the rollout correction's weights (GMPO).
    pub advantage: f64,
    /// Factor with which the tokens' losses sum to the sequence's, including verl's 1e-8 in the mean (GMPO).
    pub share: f64,
}

impl RowTerm {
    /// Neutral term, for losses that read single tokens only.
    pub(super) const NONE: Self = Self { ratio: 1.0, alive: true, advantage: 0.0, share: 1.0 };
}

/// The formula of a policy loss. Below, x is the log-ratio of actor to old policy, r = exp(x), A the
/// advantage.
pub(crate) trait TokenFormula {
    /// Computes the loss of one token that counts. `row` is [`Self::row_term`] of its sequence, and
    /// `selected` says whether [`Self::choose`] chose it.
    fn token(&self, token: &Token, row: &RowTerm, selected: bool) -> TokenLoss;

    /// Scope of the values that are needed to evaluate one token.
    fn scope(&self) -> LossScope {
        LossScope::Token
    }

    /// The aggregation with which the loss is defined; `None` if any may be used.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }

    /// Computes the shared terms of a sequence's tokens, for [`LossScope::Sequence`]; `log_ratios` are those
    /// of all tokens.
    fn row_term(&self, _inputs: &LossInputs<'_>, _row_idx: usize, _log_ratios: &[f64]) -> RowTerm {
        RowTerm::NONE
    }

    /// Selects the tokens of the batch that the loss treats specially, for [`LossScope::Batch`].
    fn choose(&self, _inputs: &CovarianceInputs<'_>) -> Vec<usize> {
        Vec::new()
    }

    /// Whether token weights of the rollout correction are factors of the tokens' losses.
    fn weighs_tokens(&self) -> bool {
        true
    }

    /// Returns a token's summand in `actor/ppo_kl`.
    fn ppo_kl(&self, log_ratio: f64) -> f64 {
        -bounded(log_ratio)
    }
}

/// Adds a token to the update's metrics.
pub(super) fn record(formula: &dyn TokenFormula, metrics: &mut LossMetrics, token: &Token, loss: &TokenLoss) {
    metrics.ppo_kl_sum += formula.ppo_kl(token.log_ratio());
    metrics.num_clipped += usize::from(loss.clipped);
    metrics.num_clipped_lower += usize::from(loss.clipped_lower);
    metrics.num_tokens += 1;
}

/// Returns the loss -weight * log pi, the form of every loss whose ratio carries no gradient.
pub(super) fn weighted_likelihood(token: &Token, weight: f64) -> TokenLoss {
    TokenLoss { value: -weight * token.logprob, gradient: -weight, ..TokenLoss::default() }
}
