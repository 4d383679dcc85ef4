//! KL divergence between the actor and a reference, estimated from log-probs of single tokens: estimators
//! with their gradients, the penalty inside the reward, and the controller of the coefficient.
//!
//! `d` is always `logprob - ref_logprob` of one token. See <http://joschu.net/blog/kl-approx.html>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::{Rows, RowsError};
use crate::whiten::masked_mean;

/// Bound to which log-ratios are clamped before they are exponentiated.
const LOG_RATIO_BOUND: f64 = 20.0;
/// Bound to which k3 is clamped.
const K3_BOUND: f64 = 10.0;

/// Estimators of the KL divergence from one sample (<http://joschu.net/blog/kl-approx.html>), d = actor -
/// reference.
///
/// Each has a value and the gradient that training uses for it. verl's names are in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KlEstimator {
    /// The log-ratio d itself.
    ///
    /// Unbiased, of either sign (`kl`, `k1`). Its gradient has expectation 0, so it belongs in the reward.
    K1,
    /// d, with the gradient of K2.
    ///
    /// Straight-through (`k1+`).
    K1StraightThrough,
    /// The absolute value of d.
    ///
    /// (`abs`)
    Abs,
    /// d^2 / 2.
    ///
    /// Biased value, the right gradient on-policy (`mse`, `k2`).
    K2,
    /// exp(-d) - 1 + d.
    ///
    /// Never negative, low variance (`low_var_kl`, `k3`); d is clamped to +-20, the value to 10.
    K3,
    /// exp(-d) - 1 + d, with the gradient of K2, which is that of the divergence.
    ///
    /// Straight-through (`k3+`).
    K3StraightThrough,
}

impl KlEstimator {
    /// Estimates the KL divergence on one token.
    pub fn value(self, logprob: f64, ref_logprob: f64) -> f64 {
        let d = logprob - ref_logprob;
        match self {
            Self::K1 | Self::K1StraightThrough => d,
            Self::Abs => d.abs(),
            Self::K2 => 0.5 * d * d,
            Self::K3 | Self::K3StraightThrough => k3(d).clamp(-K3_BOUND, K3_BOUND),
        }
    }

    /// Returns the derivative with respect to `logprob` that training uses.
    pub fn gradient(self, logprob: f64, ref_logprob: f64) -> f64 {
        let d = logprob - ref_logprob;
        match self {
            Self::K1 => 1.0,
            Self::Abs if d == 0.0 => 0.0,
            Self::Abs => d.signum(),
            Self::K2 | Self::K1StraightThrough | Self::K3StraightThrough => d,
            Self::K3 if d.abs() > LOG_RATIO_BOUND || k3(d) > K3_BOUND => 0.0,
            Self::K3 => 1.0 - (-d).exp(),
        }
    }
}

fn k3(d: f64) -> f64 {
    let e = (-d).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
    e.exp() - e - 1.0
}

/// Rewards after a KL penalty, and the input of [`KlController::update`].
#[derive(Clone, Debug, PartialEq)]
pub struct PenalizedRewards {
    /// score - coefficient * kl of every token; masked tokens keep their score.
    pub token_rewards: Vec<f64>,
    /// Mean over the rows of their mean KL per counting token (verl's `actor/reward_kl_penalty`).
    pub mean_kl: f64,
}

/// Subtracts `coefficient` times the estimated KL between the sampling policy and the reference from every
/// counting token's score.
///
/// # Errors
/// When a slice does not hold one value per token.
pub fn kl_in_reward(
    rows: &Rows,
    token_scores: &[f64],
    old_logprobs: &[f64],
    ref_logprobs: &[f64],
    estimator: KlEstimator,
    coefficient: f64,
) -> Result<PenalizedRewards, RowsError> {
    rows.check_tokens("token_scores", token_scores)?;
    rows.check_tokens("old_logprobs", old_logprobs)?;
    rows.check_tokens("ref_logprobs", ref_logprobs)?;
    let mut token_rewards = token_scores.to_vec();
    let mut kl = vec![0.0; rows.num_tokens()];
    for token in rows.valid(0..rows.num_tokens()) {
        kl[token] = estimator.value(old_logprobs[token], ref_logprobs[token]);
        token_rewards[token] -= coefficient * kl[token];
    }
    Ok(PenalizedRewards { token_rewards, mean_kl: mean_row_kl(rows, &kl) })
}

fn mean_row_kl(rows: &Rows, kl: &[f64]) -> f64 {
    if rows.num_rows() == 0 {
        return 0.0;
    }
    let sums = rows.masked_sums(kl);
    let means = sums.iter().enumerate().map(|(row_idx, sum)| sum / (rows.valid_len(row_idx) as f64 + 1e-8));
    means.sum::<f64>() / rows.num_rows() as f64
}

/// Returns the mean of `estimator` over unmasked tokens, the controller's input if the penalty is in the
/// loss.
///
/// # Errors
/// When a slice does not hold one value per token.
pub fn mean_kl(
    rows: &Rows,
    logprobs: &[f64],
    ref_logprobs: &[f64],
    estimator: KlEstimator,
) -> Result<f64, RowsError> {
    rows.check_tokens("logprobs", logprobs)?;
    rows.check_tokens("ref_logprobs", ref_logprobs)?;
    let kl: Vec<f64> = logprobs.iter().zip(ref_logprobs).map(|(l, r)| estimator.value(*l, *r)).collect();
    Ok(masked_mean(rows, &kl))
}

/// Controller of the KL coefficient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KlController {
    /// Coefficient that never changes.
    Fixed {
        /// Weight of the KL penalty.
        coefficient: f64,
    },
    /// Coefficient that steers the measured KL to `target` (arXiv 1909.08593).
    Adaptive {
        /// Current coefficient; the only state that a checkpoint must store.
        coefficient: f64,
        /// Target KL per token.
        target: f64,
        /// Number of samples over which a full correction would be applied.
        horizon: f64,
    },
}

impl KlController {
    /// Coefficient of the present step.
    pub fn coefficient(&self) -> f64 {
        match self {
            Self::Fixed { coefficient } | Self::Adaptive { coefficient, .. } => *coefficient,
        }
    }

    /// Restores the coefficient of a checkpoint; a fixed one is unchanged.
    pub fn resume(&mut self, saved_coefficient: f64) {
        if let Self::Adaptive { coefficient, .. } = self {
            *coefficient = saved_coefficient;
        }
    }

    /// Updates the coefficient by the KL measured on a step of `num_samples` samples: coefficient *= 1 +
    /// clip(kl / target - 1, +-0.2) * num_samples / horizon.
    pub fn update(&mut self, measured_kl: f64, num_samples: usize) {
        if let Self::Adaptive { coefficient, target, horizon } = self {
            let error = (measured_kl / *target - 1.0).clamp(-0.2, 0.2);
            *coefficient *= 1.0 + error * num_samples as f64 / *horizon;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_estimators_have_the_gradient_of_their_value() {
        const STEP: f64 = 1e-6;
        for estimator in [KlEstimator::K1, KlEstimator::Abs, KlEstimator::K2, KlEstimator::K3] {
            for d in [-30.0, -2.5, -0.3, 0.4, 1.7, 30.0] {
                let slope = (estimator.value(d + STEP, 0.0) - estimator.value(d - STEP, 0.0)) / (2.0 * STEP);
                let got = estimator.gradient(d, 0.0);
                assert!((got - slope).abs() < 1e-6, "{estimator:?} at {d}: {got} against {slope}");
            }
        }
    }

    #[test]
    fn values_match_the_hand_computed_table() {
        let at = |estimator: KlEstimator| [0.5, 0.0, -0.6, 1.3].map(|d| estimator.value(d, 0.0));
        let close = |got: [f64; 4], expected: [f64; 4]| {
            assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-6), "{got:?}");
        };
        close(at(KlEstimator::K1), [0.5, 0.0, -0.6, 1.3]);
        close(at(KlEstimator::K2), [0.125, 0.0, 0.18, 0.845]);
        close(at(KlEstimator::K3), [0.106531, 0.0, 0.222119, 0.572532]);
    }

    #[test]
    fn masked_tokens_pay_no_penalty() {
        let rows = Rows::from_masks([&[true, false][..], &[true]]);
        let got = kl_in_reward(&rows, &[0.0, 1.0, 2.0], &[1.0; 3], &[0.5; 3], KlEstimator::K1, 0.1).unwrap();
        assert_eq!(got.token_rewards, [-0.05, 1.0, 1.95]);
        assert!((got.mean_kl - 0.5).abs() < 1e-7, "1e-8 in the row mean");
    }

    #[test]
    fn an_adaptive_coefficient_moves_towards_its_target() {
        let mut adaptive = KlController::Adaptive { coefficient: 0.001, target: 0.1, horizon: 10_000.0 };
        adaptive.update(0.3, 1024);
        assert!((adaptive.coefficient() - 0.00102048).abs() < 1e-15);
        let mut fixed = KlController::Fixed { coefficient: 0.001 };
        fixed.update(0.3, 1024);
        assert_eq!(fixed.coefficient(), 0.001);
    }
}
