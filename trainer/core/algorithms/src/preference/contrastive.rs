//! Losses with a separate term for each completion of a pair.
//!
//! Below, c and r are beta times the log-ratios to the reference of the chosen and the rejected completion.

use super::pair::{
    BETA, DEFAULT_BETA, PairContext, PairFormula, PairLoss, Side, log_sigmoid, sigmoid, sigmoid_slope,
};
use crate::declaration::Parameter;

const RUNNING_MEAN: Parameter = Parameter::flag(
    "runningMean",
    "Whether `BcoPair` subtracts the mean reward of all completions that the run has seen, chosen and rejected, from \
     rewards (delta of <https://arxiv.org/abs/2404.04656>, TRL's `RunningMoments`); by default false, as in TRL 1.16's \
     `bco_pair`.",
);

formula! {
    /// Noise-contrastive alignment (<https://arxiv.org/abs/2402.05369>).
    ///
    /// -log sigmoid(c) - log sigmoid(-c) / 2 - log sigmoid(-r) / 2 (TRL's `nca_pair`).
    pub struct NcaPair {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for NcaPair {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (c, r) = (self.beta * chosen.log_ratio, self.beta * rejected.log_ratio);
        PairLoss {
            value: -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r),
            chosen: self.beta * (0.5 * sigmoid(c) - sigmoid(-c)),
            rejected: self.beta * 0.5 * sigmoid(r),
        }
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// A binary classifier of good and bad completions (<https://arxiv.org/abs/2404.04656>).
    ///
    /// -log sigmoid(c - d) - log sigmoid(-(r - d)), d being 0 (TRL's `bco_pair`), or with `runningMean` beta
    /// times the mean log-ratio of all completions so far (TRL's BCO).
    pub struct BcoPair {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Whether the mean of rewards is subtracted from them.
        pub running_mean: bool = RUNNING_MEAN, false;
    }
}

impl PairFormula for BcoPair {
    fn pair(&self, chosen: &Side, rejected: &Side, context: &PairContext) -> PairLoss {
        let mean = if self.running_mean { context.mean_log_ratio } else { 0.0 };
        let reward = |side: &Side| self.beta * (side.log_ratio - mean);
        let (c, r) = (reward(chosen), reward(rejected));
        PairLoss {
            value: -log_sigmoid(c) - log_sigmoid(-r),
            chosen: -self.beta * sigmoid(-c),
            rejected: self.beta * sigmoid(r),
        }
    }

    fn reads_running_mean(&self) -> bool {
        self.running_mean
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// Self-play preference optimization with certain labels (<https://arxiv.org/abs/2405.00675>).
    ///
    /// (u - 1 / (2 beta))^2 + (v + 1 / (2 beta))^2 with the log-ratios u and v (TRL's `sppo_hard`).
    pub struct SppoHard {
        /// Inverse of twice the distance from 0.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for SppoHard {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (over, under) = (chosen.log_ratio - 0.5 / self.beta, rejected.log_ratio + 0.5 / self.beta);
        PairLoss { value: over * over + under * under, chosen: 2.0 * over, rejected: 2.0 * under }
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// Raise the chosen, lower the rejected: for answers better than the model's
    /// (<https://arxiv.org/abs/2408.06266>).
    ///
    /// 1 - sigmoid(c) + sigmoid(r) (TRL's `apo_zero`).
    pub struct ApoZero {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for ApoZero {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (c, r) = (self.beta * chosen.log_ratio, self.beta * rejected.log_ratio);
        PairLoss {
            value: 1.0 - sigmoid(c) + sigmoid(r),
            chosen: -self.beta * sigmoid_slope(c),
            rejected: self.beta * sigmoid_slope(r),
        }
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// Lower both, the rejected more: for answers worse than the model's
    /// (<https://arxiv.org/abs/2408.06266>).
    ///
    /// sigmoid(c) + 1 - sigmoid(c - r) (TRL's `apo_down`).
    pub struct ApoDown {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for ApoDown {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (c, r) = (self.beta * chosen.log_ratio, self.beta * rejected.log_ratio);
        PairLoss {
            value: sigmoid(c) + 1.0 - sigmoid(c - r),
            chosen: self.beta * (sigmoid_slope(c) - sigmoid_slope(c - r)),
            rejected: self.beta * sigmoid_slope(c - r),
        }
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}
