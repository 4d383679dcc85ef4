//! Truncated or masked importance weights of the rollout correction.

use super::{ImportanceError, bounded_exp, check, max, min, row_means, share};
use crate::metrics::Metrics;
use crate::rows::Rows;
use crate::whiten::{mean, mean_where, std};

/// Whether importance ratios are those of tokens or of sequences (verl's `rollout_is`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLevel {
    /// One ratio per token: biased, low variance.
    Token,
    /// The product of a sequence's ratios for all of its tokens: unbiased, high variance.
    Sequence,
}

/// Treatment of extreme weights (verl's `rollout_is_threshold`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightBounds {
    /// Truncated importance sampling: weights above `upper` become `upper`.
    Truncate {
        /// Largest weight, positive.
        upper: f64,
    },
    /// IcePop: weights outside `[lower, upper]` become 0.
    Mask {
        /// Smallest weight kept.
        lower: f64,
        /// Largest weight kept.
        upper: f64,
    },
}

/// Settings from which token weights are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightRule {
    /// Whether ratios are those of tokens or of sequences.
    pub level: WeightLevel,
    /// Treatment of extreme weights.
    pub bounds: WeightBounds,
    /// Whether to scale the weights to mean 1 over the batch (over its sequences at
    /// [`WeightLevel::Sequence`]).
    pub batch_normalize: bool,
}

/// Importance weights of a batch, and their metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrectionWeights {
    /// Weight of each token, 0 where masked; the gradient treats it as a constant.
    pub weights: Vec<f64>,
    /// `rollout_corr/rollout_is_*`, of the weights before normalisation.
    pub metrics: Metrics,
}

/// Computes the importance weights exp(log-ratio) of a batch, bounded as `rule` says.
///
/// # Errors
/// When `log_ratios` does not match the rows or no token counts.
pub fn rollout_is(
    rows: &Rows,
    log_ratios: &[f64],
    rule: &WeightRule,
) -> Result<CorrectionWeights, ImportanceError> {
    check(rows, "log_ratios", log_ratios)?;
    let sums = rows.masked_sums(log_ratios);
    let raw = raw_weights(rows, log_ratios, &sums, rule.level);
    let mut weights: Vec<f64> = raw.iter().map(|weight| rule.bounds.apply(*weight)).collect();
    let view = View { rows, weights: &weights, raw: &raw, log_ratio_sums: &sums, rule };
    let mut metrics = view.metrics();
    if rule.batch_normalize {
        let factor = normalizer(rows, &weights, rule.level);
        weights.iter_mut().for_each(|weight| *weight /= factor);
        metrics.insert(name("batch_norm_factor"), factor);
    }
    Ok(CorrectionWeights { weights, metrics })
}

impl WeightBounds {
    fn apply(self, raw: f64) -> f64 {
        match self {
            Self::Truncate { upper } => raw.min(upper),
            Self::Mask { .. } if self.excludes(raw) => 0.0,
            Self::Mask { .. } => raw,
        }
    }

    fn excludes(self, raw: f64) -> bool {
        raw < self.lower() || raw > self.upper()
    }

    fn upper(self) -> f64 {
        match self {
            Self::Truncate { upper } | Self::Mask { upper, .. } => upper,
        }
    }

    /// Bound below which metrics call a weight low. Truncation has no lower bound, so its reciprocal upper
    /// one is used.
    fn lower(self) -> f64 {
        match self {
            Self::Truncate { upper } => 1.0 / upper,
            Self::Mask { lower, .. } => lower,
        }
    }
}

fn raw_weights(rows: &Rows, log_ratios: &[f64], sums: &[f64], level: WeightLevel) -> Vec<f64> {
    match level {
        WeightLevel::Sequence => {
            rows.broadcast(&sums.iter().map(|sum| bounded_exp(*sum)).collect::<Vec<_>>())
        }
        WeightLevel::Token => log_ratios
            .iter()
            .zip(rows.mask())
            .map(|(log_ratio, counts)| if *counts { bounded_exp(*log_ratio) } else { 0.0 })
            .collect(),
    }
}

/// Divisor that scales the weights to mean 1; 1 if their mean vanishes.
fn normalizer(rows: &Rows, weights: &[f64], level: WeightLevel) -> f64 {
    let mean = match level {
        WeightLevel::Token => mean_where(rows.mask(), |token| weights[token]),
        WeightLevel::Sequence => row_means(rows, weights).iter().sum::<f64>() / rows.num_valid_rows() as f64,
    };
    if mean > 1e-8 { mean } else { 1.0 }
}

fn name(statistic: &str) -> String {
    format!("rollout_corr/rollout_is_{statistic}")
}

/// The bounded weights of a batch, with all that their metrics are computed from.
struct View<'a> {
    rows: &'a Rows,
    weights: &'a [f64],
    raw: &'a [f64],
    log_ratio_sums: &'a [f64],
    rule: &'a WeightRule,
}

impl View<'_> {
    fn metrics(&self) -> Metrics {
        let mut values = vec![("mean", self.token_mean(|token| self.weights[token]))];
        match self.rule.level {
            WeightLevel::Token => values.extend(self.token_extremes()),
            WeightLevel::Sequence => values.extend(self.sequence_extremes()),
        }
        values.extend(self.spread());
        values.extend(self.by_sequence());
        if let WeightBounds::Mask { .. } = self.rule.bounds {
            values.push(("oob_ratio", self.token_share(|token| self.rule.bounds.excludes(self.raw[token]))));
        }
        values.into_iter().map(|(statistic, value)| (name(statistic), value)).collect()
    }

    fn token_mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        mean_where(self.rows.mask(), value)
    }

    fn token_share(&self, is: impl Fn(usize) -> bool) -> f64 {
        self.token_mean(|token| f64::from(u8::from(is(token))))
    }

    fn token_extremes(&self) -> [(&'static str, f64); 4] {
        let bounds = self.rule.bounds;
        let counting = || self.rows.valid(0..self.rows.num_tokens()).map(|token| self.weights[token]);
        [
            ("ratio_fraction_high", self.token_share(|token| self.raw[token] > bounds.upper())),
            ("ratio_fraction_low", self.token_share(|token| self.raw[token] < bounds.lower())),
            ("max", max(counting())),
            ("min", min(counting())),
        ]
    }

    fn sequence_extremes(&self) -> [(&'static str, f64); 4] {
        let (high, low) = (self.rule.bounds.upper().ln(), self.rule.bounds.lower().ln());
        let sums = self.log_ratio_sums;
        [
            ("ratio_fraction_high", share(sums, |sum| sum > high)),
            ("ratio_fraction_low", share(sums, |sum| sum < low)),
            ("max", max(sums.iter().copied()).min(super::LOG_RATIO_BOUND).exp()),
            ("min", min(sums.iter().copied()).exp()),
        ]
    }

    /// Returns the standard deviation over tokens, and the effective sample size as a fraction of the tokens.
    fn spread(&self) -> [(&'static str, f64); 2] {
        let upper = self.rule.bounds.upper();
        let held = |token: usize| self.weights[token].clamp(0.0, upper);
        let mean = self.token_mean(held);
        let variance = self.token_mean(|token| held(token).powi(2)) - mean * mean;
        let single = self.rows.num_valid_tokens() < 2;
        let share = 1.0 / self.token_mean(|token| (held(token) / (mean + 1e-8)).powi(2));
        [("std", if single { 0.0 } else { variance.max(0.0).sqrt() }), ("eff_sample_size", share)]
    }

    fn by_sequence(&self) -> [(&'static str, f64); 7] {
        let bounds = self.rule.bounds;
        let means = row_means(self.rows, self.weights);
        let raw_means = row_means(self.rows, self.raw);
        [
            ("seq_mean", mean(&means)),
            ("seq_std", std(&means)),
            ("seq_max", max(means.iter().copied())),
            ("seq_min", min(means.iter().copied())),
            ("seq_max_deviation", max(means.iter().map(|mean| (mean - 1.0).abs()))),
            ("seq_fraction_high", share(&raw_means, |mean| mean > bounds.upper())),
            ("seq_fraction_low", share(&raw_means, |mean| mean < bounds.lower())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: WeightRule = WeightRule {
        level: WeightLevel::Token,
        bounds: WeightBounds::Truncate { upper: 2.0 },
        batch_normalize: false,
    };

    #[test]
    fn equal_policies_weigh_every_token_exactly_one() {
        let rows = Rows::from_masks([&[true, false][..], &[true, true]]);
        for level in [WeightLevel::Token, WeightLevel::Sequence] {
            let got = rollout_is(&rows, &[0.0; 4], &WeightRule { level, ..TOKEN }).unwrap();
            assert_eq!(got.weights, [1.0, 0.0, 1.0, 1.0]);
        }
    }

    #[test]
    fn extreme_weights_are_truncated_or_dropped() {
        let rows = Rows::unmasked([3]);
        let log_ratios = [3.0_f64, 1.0, 0.25].map(f64::ln);
        assert_eq!(rollout_is(&rows, &log_ratios, &TOKEN).unwrap().weights, [2.0, 1.0, 0.25]);
        let masked = WeightRule { bounds: WeightBounds::Mask { lower: 0.5, upper: 2.0 }, ..TOKEN };
        let got = rollout_is(&rows, &log_ratios, &masked).unwrap();
        assert_eq!(got.weights, [0.0, 1.0, 0.0]);
        assert!((got.metrics["rollout_corr/rollout_is_oob_ratio"] - 2.0 / 3.0).abs() < 1e-8);
    }

    #[test]
    fn normalised_weights_have_mean_one() {
        let rows = Rows::unmasked([2]);
        let rule = WeightRule { batch_normalize: true, ..TOKEN };
        let got = rollout_is(&rows, &[0.5_f64.ln(), 1.5_f64.ln()], &rule).unwrap();
        assert!((got.weights.iter().sum::<f64>() / 2.0 - 1.0).abs() < 1e-7, "1e-8 in the mean: {got:?}");
    }

    #[test]
    fn a_batch_without_tokens_is_refused() {
        let rows = Rows::from_masks([&[false][..]]);
        assert_eq!(rollout_is(&rows, &[0.0], &TOKEN), Err(ImportanceError::NoTokens { num_rows: 1 }));
    }
}
