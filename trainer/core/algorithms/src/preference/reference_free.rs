//! Losses without a reference policy: CPO, SimPO and ORPO.
//!
//! Their papers add the likelihood of the chosen completion:
//! [`super::PreferenceObjective::imitation`].

use super::Divergence;
use super::pair::{
    BETA, DEFAULT_BETA, LABEL_SMOOTHING, PairFormula, PairLoss, Side, log_sigmoid, sigmoid, smoothed_logistic,
};
use crate::declaration::Parameter;

const SIMPO_GAMMA: Parameter = Parameter::number(
    "simpoGamma",
    0.0,
    1000.0,
    "Margin that `SimPo` wants between the rewards of chosen and rejected; by default 0.5.",
);

formula! {
    /// Contrastive preference optimization (<https://arxiv.org/abs/2401.08417>).
    ///
    /// -log sigmoid(beta (chosen - rejected)) of the sums of log-probs (TRL's CPO, `sigmoid`).
    pub struct Cpo {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

impl PairFormula for Cpo {
    fn pair(&self, chosen: &Side, rejected: &Side, _: Divergence) -> PairLoss {
        let x = self.beta * (chosen.logprob - rejected.logprob);
        PairLoss::of_difference(smoothed_logistic(x, self.label_smoothing), self.beta, self.beta)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// Mean log-probs with a margin (<https://arxiv.org/abs/2405.14734>).
    ///
    /// -log sigmoid(beta (chosen - rejected) - gamma) of the mean log-probs (TRL's CPO, `simpo`).
    pub struct SimPo {
        /// Factor of the mean log-probs.
        pub beta: f64 = BETA, 2.0;
        /// Margin between the rewards.
        pub gamma: f64 = SIMPO_GAMMA, 0.5;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

impl PairFormula for SimPo {
    fn pair(&self, chosen: &Side, rejected: &Side, _: Divergence) -> PairLoss {
        let x = self.beta * (chosen.mean_logprob() - rejected.mean_logprob()) - self.gamma;
        let slopes = (self.beta / chosen.num_tokens.max(1.0), self.beta / rejected.num_tokens.max(1.0));
        PairLoss::of_difference(smoothed_logistic(x, self.label_smoothing), slopes.0, slopes.1)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// The odds of the chosen against those of the rejected (<https://arxiv.org/abs/2403.07691>).
    ///
    /// -beta log sigmoid(log odds(chosen) - log odds(rejected)), odds(p) = p / (1 - p) of the mean log-probs
    /// (TRL's ORPO).
    pub struct Orpo {
        /// Weight of the odds beside the likelihood of the chosen completion (the paper's lambda).
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for Orpo {
    fn pair(&self, chosen: &Side, rejected: &Side, _: Divergence) -> PairLoss {
        let (chosen_odds, chosen_slope) = log_odds(chosen.mean_logprob());
        let (rejected_odds, rejected_slope) = log_odds(rejected.mean_logprob());
        let x = chosen_odds - rejected_odds;
        let slopes =
            (chosen_slope / chosen.num_tokens.max(1.0), rejected_slope / rejected.num_tokens.max(1.0));
        PairLoss::of_difference((-self.beta * log_sigmoid(x), -self.beta * sigmoid(-x)), slopes.0, slopes.1)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

/// log(p / (1 - p)) of p = exp(`logprob`), and its derivative 1 / (1 - p). A probability of 1 is held below
/// it.
fn log_odds(logprob: f64) -> (f64, f64) {
    let rest = -logprob.min(-f64::EPSILON).exp_m1();
    (logprob - rest.ln(), 1.0 / rest)
}
