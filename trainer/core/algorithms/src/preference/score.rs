//! DPO and similar losses: functions of the difference of two scores, chosen minus rejected.
//!
//! Below, x is beta times that difference; a score is [`super::Divergence::score`] of the log-ratio to the
//! reference.

use super::pair::{
    BETA, DEFAULT_BETA, LABEL_SMOOTHING, PairContext, PairFormula, PairLoss, Side, log_sigmoid, sigmoid,
    sigmoid_slope, smoothed_logistic,
};
use crate::declaration::Parameter;

const DISCOPOP_TAU: Parameter = Parameter::number(
    "discopopTau",
    1e-6,
    1000.0,
    "Temperature by which `DiscoPop` blends its two losses; by default 0.05.",
);

/// Smallest label smoothing of [`ExoPair`], whose logarithm is taken.
const LEAST_SMOOTHING: f64 = 1e-3;

/// A loss that depends only on the difference of two scores.
pub(super) trait ScoreFormula {
    /// Factor of the scores.
    fn beta(&self) -> f64;

    /// Whether scores are divided by the lengths of their completions.
    fn is_per_token(&self) -> bool {
        false
    }

    /// Returns the loss at x, and its slope by x.
    fn at(&self, x: f64) -> (f64, f64);
}

impl<F: ScoreFormula> PairFormula for F {
    fn pair(&self, chosen: &Side, rejected: &Side, context: &PairContext) -> PairLoss {
        let beta = ScoreFormula::beta(self);
        let len = |side: &Side| if self.is_per_token() { side.num_tokens.max(1.0) } else { 1.0 };
        let (chosen_len, rejected_len) = (len(chosen), len(rejected));
        let (chosen, chosen_slope) = context.divergence.score(chosen.log_ratio);
        let (rejected, rejected_slope) = context.divergence.score(rejected.log_ratio);
        let x = beta * (chosen / chosen_len - rejected / rejected_len);
        let slopes = (beta * chosen_slope / chosen_len, beta * rejected_slope / rejected_len);
        let (value, slope) = self.at(x);
        PairLoss::of_difference(value, slope, slopes.0, slopes.1)
    }

    fn takes_divergence(&self) -> bool {
        true
    }

    fn beta(&self) -> f64 {
        ScoreFormula::beta(self)
    }
}

formula! {
    /// Direct preference optimization (<https://arxiv.org/abs/2305.18290>).
    ///
    /// -log sigmoid(x) (TRL's `sigmoid`).
    pub struct Sigmoid {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl ScoreFormula for Sigmoid {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn at(&self, x: f64) -> (f64, f64) {
        smoothed_logistic(x, 0.0)
    }
}

formula! {
    /// DPO on scores per token.
    ///
    /// -log sigmoid(beta (chosen / length - rejected / length)) (TRL's `sigmoid_norm`).
    pub struct SigmoidNorm {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl ScoreFormula for SigmoidNorm {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn is_per_token(&self) -> bool {
        true
    }

    fn at(&self, x: f64) -> (f64, f64) {
        smoothed_logistic(x, 0.0)
    }
}

formula! {
    /// A margin of 1 between the scores (<https://arxiv.org/abs/2305.10425>).
    ///
    /// max(0, 1 - x) (TRL's `hinge`).
    pub struct Hinge {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl ScoreFormula for Hinge {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn at(&self, x: f64) -> (f64, f64) {
        if x < 1.0 { (1.0 - x, -1.0) } else { (0.0, 0.0) }
    }
}

formula! {
    /// The squared distance of the scores per token from a margin (<https://arxiv.org/abs/2310.12036>).
    ///
    /// (chosen / length - rejected / length - 1 / (2 beta))^2 (TRL's `ipo`).
    pub struct Ipo {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for Ipo {
    fn pair(&self, chosen: &Side, rejected: &Side, context: &PairContext) -> PairLoss {
        let (chosen_len, rejected_len) = (chosen.num_tokens.max(1.0), rejected.num_tokens.max(1.0));
        let (chosen, chosen_slope) = context.divergence.score(chosen.log_ratio);
        let (rejected, rejected_slope) = context.divergence.score(rejected.log_ratio);
        let error = chosen / chosen_len - rejected / rejected_len - 0.5 / self.beta;
        let slopes = (chosen_slope / chosen_len, rejected_slope / rejected_len);
        PairLoss::of_difference(error * error, 2.0 * error, slopes.0, slopes.1)
    }

    fn takes_divergence(&self) -> bool {
        true
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// DPO without the bias of wrong labels (<https://arxiv.org/abs/2403.00409>).
    ///
    /// (-(1 - s) log sigmoid(x) + s log sigmoid(-x)) / (1 - 2 s) (TRL's `robust`).
    pub struct Robust {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

impl ScoreFormula for Robust {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn at(&self, x: f64) -> (f64, f64) {
        let (s, scale) = (self.label_smoothing, 1.0 - 2.0 * self.label_smoothing);
        let value = (-(1.0 - s) * log_sigmoid(x) + s * log_sigmoid(-x)) / scale;
        let slope = (-(1.0 - s) * sigmoid(-x) - s * sigmoid(x)) / scale;
        (value, slope)
    }
}

formula! {
    /// The reverse KL divergence to the labels (EXO, <https://arxiv.org/abs/2402.00856>).
    ///
    /// q log(q / (1 - s)) + (1 - q) log((1 - q) / s) with q = sigmoid(x) (TRL's `exo_pair`).
    pub struct ExoPair {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, LEAST_SMOOTHING;
    }
}

impl ScoreFormula for ExoPair {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn at(&self, x: f64) -> (f64, f64) {
        let s = if self.label_smoothing > 0.0 { self.label_smoothing } else { LEAST_SMOOTHING };
        let (log_right, log_wrong) = ((-s).ln_1p(), s.ln());
        let value = sigmoid(x) * (log_sigmoid(x) - log_right) + sigmoid(-x) * (log_sigmoid(-x) - log_wrong);
        let slope = sigmoid_slope(x) * (x - log_right + log_wrong);
        (value, slope)
    }
}

formula! {
    /// A blend of the logistic and the exponential loss (<https://arxiv.org/abs/2406.08414>).
    ///
    /// -(1 - m) log sigmoid(x) + m exp(-x) with m = sigmoid(x / tau) (TRL's `discopop`).
    pub struct DiscoPop {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Temperature of the blend.
        pub tau: f64 = DISCOPOP_TAU, 0.05;
    }
}

impl ScoreFormula for DiscoPop {
    fn beta(&self) -> f64 {
        self.beta
    }

    fn at(&self, x: f64) -> (f64, f64) {
        let blend = sigmoid(x / self.tau);
        let (logistic, exponential) = (-log_sigmoid(x), (-x).exp());
        let value = logistic * (1.0 - blend) + exponential * blend;
        let blending = sigmoid_slope(x / self.tau) / self.tau * (exponential - logistic);
        let slope = -sigmoid(-x) * (1.0 - blend) - exponential * blend + blending;
        (value, slope)
    }
}
