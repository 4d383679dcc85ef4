//! Rejection of tokens or sequences on which the rollout policy and the trainer's policy differ too much.

use super::{ImportanceError, LOG_RATIO_BOUND, check};
use crate::metrics::Metrics;
use crate::rows::Rows;
use crate::whiten::mean_where;

/// Whether divergences are compared per token or per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionLevel {
    /// Each token alone (`token_*`).
    Token,
    /// A sequence, by the sum over its tokens (`seq_sum_*`).
    SequenceSum,
    /// A sequence, by the mean over its tokens (`seq_mean_*`).
    SequenceMean,
    /// A sequence, by its worst token (`seq_max_*`).
    SequenceMax,
}

/// Divergence of the two policies on a token, and its bound. x is the log-ratio, clamped to +-20.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// k1 = -x, kept while exp(k1), the **inverse** ratio, is in `[lower, upper]`.
    K1 {
        /// Smallest inverse ratio kept.
        lower: f64,
        /// Largest inverse ratio kept.
        upper: f64,
    },
    /// k2 = x^2 / 2, kept up to `upper`.
    K2 {
        /// Largest divergence kept.
        upper: f64,
    },
    /// k3 = exp(x) - 1 - x, kept up to `upper`.
    K3 {
        /// Largest divergence kept.
        upper: f64,
    },
}

/// One rejection criterion; verl names it `<level>_<divergence>`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RejectionRule {
    /// Whether tokens or sequences are rejected.
    pub level: RejectionLevel,
    /// Divergence that is compared, with its bound.
    pub divergence: Divergence,
}

/// The result of the rejection: the new mask and its metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The loss mask without the rejected tokens, flat; give it to [`Rows::with_mask`].
    pub mask: Vec<bool>,
    /// `rollout_corr/rollout_rs_*`: fractions of tokens and sequences rejected, in total and by each rule.
    pub metrics: Metrics,
}

impl RejectionRule {
    /// Returns verl's name of the rule.
    pub fn name(&self) -> String {
        let level = match self.level {
            RejectionLevel::Token => "token",
            RejectionLevel::SequenceSum => "seq_sum",
            RejectionLevel::SequenceMean => "seq_mean",
            RejectionLevel::SequenceMax => "seq_max",
        };
        let divergence = match self.divergence {
            Divergence::K1 { .. } => "k1",
            Divergence::K2 { .. } => "k2",
            Divergence::K3 { .. } => "k3",
        };
        format!("{level}_{divergence}")
    }

    /// Returns whether each token passes; at sequence levels all tokens of a sequence pass or fail together.
    fn keeps(&self, rows: &Rows, log_ratios: &[f64]) -> Vec<bool> {
        let divergences: Vec<f64> = log_ratios.iter().map(|x| self.divergence.of(*x)).collect();
        if self.level == RejectionLevel::Token {
            return divergences.iter().map(|value| self.divergence.allows(*value)).collect();
        }
        let mut keep = Vec::with_capacity(rows.num_tokens());
        for (row_idx, range) in rows.ranges().enumerate() {
            let verdict = self.divergence.allows(self.statistic(rows, row_idx, &divergences));
            keep.resize(keep.len() + range.len(), verdict);
        }
        keep
    }

    fn statistic(&self, rows: &Rows, row_idx: usize, divergences: &[f64]) -> f64 {
        let counting = rows.valid(rows.range(row_idx)).map(|token| divergences[token]);
        match self.level {
            RejectionLevel::SequenceMax if rows.valid_len(row_idx) == 0 => 0.0,
            RejectionLevel::SequenceMax => super::max(counting),
            RejectionLevel::SequenceMean => counting.sum::<f64>() / (rows.valid_len(row_idx) as f64 + 1e-8),
            RejectionLevel::SequenceSum | RejectionLevel::Token => counting.sum(),
        }
    }
}

impl Divergence {
    fn of(self, log_ratio: f64) -> f64 {
        let x = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
        match self {
            Self::K1 { .. } => -x,
            Self::K2 { .. } => 0.5 * x * x,
            Self::K3 { .. } => x.exp() - 1.0 - x,
        }
    }

    fn allows(self, value: f64) -> bool {
        match self {
            Self::K1 { lower, upper } => value >= lower.ln() && value <= upper.ln(),
            Self::K2 { upper } | Self::K3 { upper } => value <= upper,
        }
    }
}

/// Applies every rule; a token is kept if all rules keep it.
///
/// # Errors
/// When `log_ratios` does not match the rows or no token counts.
pub fn rollout_rejection(
    rows: &Rows,
    log_ratios: &[f64],
    rules: &[RejectionRule],
) -> Result<Rejection, ImportanceError> {
    check(rows, "log_ratios", log_ratios)?;
    let mut mask = rows.mask().to_vec();
    let mut metrics = Metrics::new();
    for rule in rules {
        let keep = rule.keeps(rows, log_ratios);
        report(&mut metrics, &format!("rollout_corr/rollout_rs_{}_", rule.name()), rows, &keep);
        mask.iter_mut().zip(keep).for_each(|(counts, keep)| *counts &= keep);
    }
    report(&mut metrics, "rollout_corr/rollout_rs_", rows, &mask);
    Ok(Rejection { mask, metrics })
}

fn report(metrics: &mut Metrics, prefix: &str, rows: &Rows, keep: &[bool]) {
    let rejected = mean_where(rows.mask(), |token| f64::from(u8::from(!keep[token])));
    let touched = rows.ranges().filter(|range| rows.valid(range.clone()).any(|token| !keep[token])).count();
    let touched = touched as f64 / rows.num_valid_rows().max(1) as f64;
    metrics.insert(format!("{prefix}masked_fraction"), rejected);
    metrics.insert(format!("{prefix}seq_masked_fraction"), touched);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(level: RejectionLevel, divergence: Divergence) -> Vec<bool> {
        let rows = Rows::from_masks([&[true, true, false][..], &[true]]);
        let log_ratios = [0.0, 1.0, 9.0, 0.1];
        rollout_rejection(&rows, &log_ratios, &[RejectionRule { level, divergence }]).unwrap().mask
    }

    #[test]
    fn a_rule_judges_tokens_or_whole_sequences() {
        let k2 = |upper| Divergence::K2 { upper };
        assert_eq!(keep(RejectionLevel::Token, k2(0.3)), [true, false, false, true]);
        assert_eq!(keep(RejectionLevel::SequenceMean, k2(0.3)), [true, true, false, true]);
        assert_eq!(keep(RejectionLevel::SequenceSum, k2(0.3)), [false, false, false, true]);
        assert_eq!(keep(RejectionLevel::SequenceMax, k2(0.3)), [false, false, false, true]);
    }

    #[test]
    fn k1_bounds_hold_the_inverse_ratio() {
        let k1 = Divergence::K1 { lower: 0.5, upper: 2.0 };
        assert_eq!(keep(RejectionLevel::Token, k1), [true, false, false, true], "exp(-1) is below 0.5");
    }

    #[test]
    fn shares_count_tokens_and_sequences() {
        let rows = Rows::unmasked([2, 2]);
        let rule = RejectionRule { level: RejectionLevel::Token, divergence: Divergence::K3 { upper: 0.1 } };
        let got = rollout_rejection(&rows, &[0.0, 2.0, 0.0, 0.0], &[rule]).unwrap().metrics;
        assert!((got["rollout_corr/rollout_rs_masked_fraction"] - 0.25).abs() < 1e-8);
        assert!((got["rollout_corr/rollout_rs_token_k3_seq_masked_fraction"] - 0.5).abs() < 1e-8);
    }
}
