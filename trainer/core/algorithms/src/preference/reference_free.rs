//! Losses without a reference policy: CPO, SimPO, AlphaPO and ORPO.
//!
//! Their papers add the likelihood of the chosen completion:
//! [`super::PreferenceObjective::imitation`].

use super::pair::{
    BETA, DEFAULT_BETA, LABEL_SMOOTHING, PairContext, PairFormula, PairLoss, Side, log_sigmoid, sigmoid,
    smoothed_logistic,
};
use crate::declaration::Parameter;

const SIMPO_GAMMA: Parameter = Parameter::number(
    "simpoGamma",
    0.0,
    1000.0,
    "Margin that `SimPo` and `AlphaPo` want between the rewards of chosen and rejected; by default 0.5.",
);

const ALPHA_PO_ALPHA: Parameter = Parameter::number(
    "alphaPoAlpha",
    -10.0,
    10.0,
    "Shape of the rewards of `AlphaPo`; near 0 that of `SimPo`, by default 0.25.",
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
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let x = self.beta * (chosen.logprob - rejected.logprob);
        let (value, slope) = smoothed_logistic(x, self.label_smoothing);
        PairLoss::of_difference(value, slope, self.beta, self.beta)
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
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let x = self.beta * (chosen.mean_logprob() - rejected.mean_logprob()) - self.gamma;
        let slopes = (self.beta / chosen.num_tokens.max(1.0), self.beta / rejected.num_tokens.max(1.0));
        let (value, slope) = smoothed_logistic(x, self.label_smoothing);
        PairLoss::of_difference(value, slope, slopes.0, slopes.1)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// Mean log-probs with a margin, in rewards of another shape (<https://arxiv.org/abs/2501.03884>).
    ///
    /// As `SimPo` with (1 - p^-alpha) / alpha instead of log p, p being exp of the mean log-prob (TRL's CPO,
    /// `alphapo`).
    pub struct AlphaPo {
        /// Factor of the rewards.
        pub beta: f64 = BETA, 2.0;
        /// Margin between the rewards.
        pub gamma: f64 = SIMPO_GAMMA, 0.5;
        /// Shape of the rewards; near 0 that of `SimPo`.
        pub alpha: f64 = ALPHA_PO_ALPHA, 0.25;
        /// Probability of wrong labels.
        pub label_smoothing: f64 = LABEL_SMOOTHING, 0.0;
    }
}

impl AlphaPo {
    /// Returns the reward of a mean log-prob, without beta, and its derivative.
    fn reward(&self, logprob: f64) -> (f64, f64) {
        let power = (-self.alpha * logprob).exp();
        if self.alpha == 0.0 { (logprob, 1.0) } else { ((1.0 - power) / self.alpha, power) }
    }
}

impl PairFormula for AlphaPo {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (chosen_reward, chosen_slope) = self.reward(chosen.mean_logprob());
        let (rejected_reward, rejected_slope) = self.reward(rejected.mean_logprob());
        let x = self.beta * (chosen_reward - rejected_reward) - self.gamma;
        let of_token = |slope: f64, side: &Side| self.beta * slope / side.num_tokens.max(1.0);
        let (value, slope) = smoothed_logistic(x, self.label_smoothing);
        PairLoss::of_difference(
            value,
            slope,
            of_token(chosen_slope, chosen),
            of_token(rejected_slope, rejected),
        )
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// A margin of 1 between log-probs.
    ///
    /// max(0, 1 - beta (chosen - rejected)) of the sums of log-probs (TRL's CPO, `hinge`).
    pub struct CpoHinge {
        /// Factor of the scores.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for CpoHinge {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let x = self.beta * (chosen.logprob - rejected.logprob);
        let (value, slope) = if x < 1.0 { (1.0 - x, -1.0) } else { (0.0, 0.0) };
        PairLoss::of_difference(value, slope, self.beta, self.beta)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

formula! {
    /// The squared distance of mean log-probs from a margin.
    ///
    /// (chosen - rejected - 1 / (2 beta))^2 of the mean log-probs (TRL's CPO, `ipo`).
    pub struct CpoIpo {
        /// Half the inverse of the margin.
        pub beta: f64 = BETA, DEFAULT_BETA;
    }
}

impl PairFormula for CpoIpo {
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let error = chosen.mean_logprob() - rejected.mean_logprob() - 0.5 / self.beta;
        let slope = |side: &Side| 1.0 / side.num_tokens.max(1.0);
        PairLoss::of_difference(error * error, 2.0 * error, slope(chosen), slope(rejected))
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
    fn pair(&self, chosen: &Side, rejected: &Side, _: &PairContext) -> PairLoss {
        let (chosen_odds, chosen_slope) = log_odds(chosen.mean_logprob());
        let (rejected_odds, rejected_slope) = log_odds(rejected.mean_logprob());
        let x = chosen_odds - rejected_odds;
        let slopes =
            (chosen_slope / chosen.num_tokens.max(1.0), rejected_slope / rejected.num_tokens.max(1.0));
        let (value, slope) = (-self.beta * log_sigmoid(x), -self.beta * sigmoid(-x));
        PairLoss::of_difference(value, slope, slopes.0, slopes.1)
    }

    fn reads_reference(&self) -> bool {
        false
    }

    fn beta(&self) -> f64 {
        self.beta
    }
}

/// Returns log(p / (1 - p)) of p = exp(`logprob`), and its derivative 1 / (1 - p). p is kept below 1.
fn log_odds(logprob: f64) -> (f64, f64) {
    let rest = -logprob.min(-f64::EPSILON).exp_m1();
    (logprob - rest.ln(), 1.0 / rest)
}
