//! Shared types of preference losses: a pair of completions, parameters, and the logistic function.

use super::Divergence;
use super::matching::Matching;
use crate::declaration::Parameter;

/// Parameter `preference.beta` of manifests.
pub(super) const BETA: Parameter = Parameter::number(
    "beta",
    1e-6,
    1000.0,
    "How strongly the actor is held near the reference: the factor of log-ratios, or the margin's inverse for `Ipo`, \
     `CpoIpo` and `SppoHard`; by default 0.1, for `SimPo` and `AlphaPo` 2. The kind `KTO` has it too.",
);

/// Parameter `preference.labelSmoothing` of manifests.
pub(super) const LABEL_SMOOTHING: Parameter = Parameter::number(
    "labelSmoothing",
    0.0,
    0.49,
    "Probability that a pair's labels are the wrong way round (`Robust`, `ExoPair`, `Aot`, `AotUnpaired`, `Cpo`, \
     `SimPo`, `AlphaPo`); by default 0, for `ExoPair` 0.001, where 0 means that too.",
);

/// TRL's default beta.
pub(super) const DEFAULT_BETA: f64 = 0.1;

/// One completion of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Side {
    /// Sum of the log-probs of the completion's counting tokens under the actor.
    pub logprob: f64,
    /// `logprob` minus the sum under the reference; 0 without a reference.
    pub log_ratio: f64,
    /// Number of counting tokens.
    pub num_tokens: f64,
}

impl Side {
    /// Mean log-prob of a token of the completion.
    pub(super) fn mean_logprob(&self) -> f64 {
        self.logprob / self.num_tokens.max(1.0)
    }
}

/// Loss of a pair, with its derivatives with respect to the sums of log-probs under the actor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PairLoss {
    pub value: f64,
    pub chosen: f64,
    pub rejected: f64,
}

impl PairLoss {
    /// Makes a loss of the difference `x` of two scores, from its value, its slope by `x`, and the slopes of
    /// the chosen and the rejected score.
    pub(super) fn of_difference(value: f64, slope: f64, chosen: f64, rejected: f64) -> Self {
        Self { value, chosen: slope * chosen, rejected: -slope * rejected }
    }
}

/// Values beyond the pair that a pair's loss may read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PairContext {
    /// Divergence that defines scores, in losses of the difference of two scores.
    pub divergence: Divergence,
    /// Mean log-ratio of all completions so far.
    pub mean_log_ratio: f64,
}

/// The formula of a preference loss.
pub(crate) trait PairFormula {
    /// Computes the loss of one pair, or of two completions that [`Self::matching`] compares.
    fn pair(&self, chosen: &Side, rejected: &Side, context: &PairContext) -> PairLoss;

    /// Rule by which completions of an update are matched for comparison.
    fn matching(&self) -> Matching {
        Matching::Pairs
    }

    /// Whether the loss reads [`PairContext::mean_log_ratio`].
    fn reads_running_mean(&self) -> bool {
        false
    }

    /// Whether the loss reads log-probs under the reference.
    fn reads_reference(&self) -> bool {
        true
    }

    /// Whether the loss is a function of the difference of two scores, which a [`Divergence`] defines.
    fn takes_divergence(&self) -> bool {
        false
    }

    /// Factor by which log-ratios (log-probs without a reference) become rewards in metrics.
    fn beta(&self) -> f64;
}

/// 1 / (1 + exp(-x)).
pub(crate) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

/// log sigmoid(x), without overflow.
pub(crate) fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

/// Derivative of sigmoid.
pub(super) fn sigmoid_slope(x: f64) -> f64 {
    sigmoid(x) * sigmoid(-x)
}

/// Returns -log sigmoid(x) with probability 1 - `smoothing` and -log sigmoid(-x) otherwise, in expectation;
/// and its slope.
pub(super) fn smoothed_logistic(x: f64, smoothing: f64) -> (f64, f64) {
    (
        -(1.0 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x),
        -(1.0 - smoothing) * sigmoid(-x) + smoothing * sigmoid(x),
    )
}
