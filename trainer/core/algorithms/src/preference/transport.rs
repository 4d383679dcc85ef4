//! Alignment by optimal transport: losses that compare the distribution of the update's log-ratios, not each
//! pair by itself. They depend on the whole update, which must be evaluated at once.

use super::matching::Matching;
use super::pair::{
    BETA, DEFAULT_BETA, LABEL_SMOOTHING, PairContext, PairFormula, PairLoss, Side, smoothed_logistic,
};

formula! {
    /// Log-ratios of chosen to rejected that dominate the reference's (<https://arxiv.org/abs/2406.05882>).
    ///
    /// The mean over ranks of -(1 - s) log sigmoid(x) - s log sigmoid(-x), x being beta times the difference
    /// of the actor's and the reference's log-ratio of the same rank in the update (TRL's `aot`).
    pub struct Aot {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

formula! {
    /// Rewards of chosen completions that dominate those of rejected ones, whichever prompts they belong to
    /// (<https://arxiv.org/abs/2406.05882>).
    ///
    /// The same with x being beta times the difference of the log-ratios of the chosen and the rejected
    /// completion of the same rank in the update (TRL's `aot_unpaired`).
    pub struct AotUnpaired {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

fn loss(beta: f64, smoothing: f64, chosen: &Side, rejected: &Side) -> PairLoss {
    let x = beta * (chosen.log_ratio - rejected.log_ratio);
    let (value, slope) = smoothed_logistic(x, smoothing);
    PairLoss::of_difference(value, slope, beta, beta)
}

impl PairFormula for Aot {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        loss(self.beta, self.label_smoothing, chosen, rejected)
    }

    fn matching(&self) -> Matching {
        Matching::SortedPairs
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

impl PairFormula for AotUnpaired {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        loss(self.beta, self.label_smoothing, chosen, rejected)
    }

    fn matching(&self) -> Matching {
        Matching::SortedSides
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}
