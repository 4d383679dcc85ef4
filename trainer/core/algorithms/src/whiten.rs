//! Means, variances and whitening over unmasked tokens, as defined by verl's `torch_functional.masked_*`, and
//! the same for plain values.

use thiserror::Error;

use crate::rows::Rows;

/// Epsilon that keeps quotients by a token count or a variance finite (verl's constant).
pub const EPSILON: f64 = 1e-8;

/// Values that cannot be whitened, since fewer than two tokens count.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("whitening needs at least 2 tokens that count, got {num_tokens}")]
pub struct TooFewTokens {
    /// Number of tokens that count.
    pub num_tokens: usize,
}

/// Mean and variance of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Mean: sum / (count + 1e-8).
    pub mean: f64,
    /// Unbiased variance (divisor n - 1).
    pub var: f64,
}

/// Returns the mean of `values` (one per token) over the tokens that count: sum / (count + 1e-8), so 0
/// without any.
pub fn masked_mean(rows: &Rows, values: &[f64]) -> f64 {
    mean_where(rows.mask(), |token| values[token])
}

/// Returns the mean of a function of the token's index over the tokens that count, like [`masked_mean`].
pub fn mean_where(mask: &[bool], value: impl Fn(usize) -> f64) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for token in (0..mask.len()).filter(|token| mask[*token]) {
        sum += value(token);
        count += 1.0;
    }
    sum / (count + EPSILON)
}

/// Returns mean and variance of `values` (one per token) over the tokens that count.
///
/// # Errors
/// [`TooFewTokens`] for fewer than two tokens that count.
pub fn masked_moments(rows: &Rows, values: &[f64]) -> Result<Moments, TooFewTokens> {
    let num_tokens = rows.num_valid_tokens();
    if num_tokens < 2 {
        return Err(TooFewTokens { num_tokens });
    }
    let mean = masked_mean(rows, values);
    let biased = mean_where(rows.mask(), |token| (values[token] - mean).powi(2));
    let count = num_tokens as f64;
    Ok(Moments { mean, var: biased * count / (count - 1.0) })
}

/// Shifts `values` (one per token) to mean 0 and scales them to variance 1 over the tokens that count; with
/// `shift_mean` false the mean is kept. Masked tokens are mapped likewise and are **not** zeroed.
///
/// # Errors
/// The error of [`masked_moments`].
pub fn masked_whiten(rows: &Rows, values: &[f64], shift_mean: bool) -> Result<Vec<f64>, TooFewTokens> {
    let Moments { mean, var } = masked_moments(rows, values)?;
    let scale = 1.0 / (var + EPSILON).sqrt();
    let kept = if shift_mean { 0.0 } else { mean };
    Ok(values.iter().map(|value| (value - mean) * scale + kept).collect())
}

/// Returns the mean of at least one value, exact if all are equal: values of a group without a signal then
/// differ from their mean by exactly 0.
pub fn mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let rough = values.iter().sum::<f64>() / count;
    rough + values.iter().map(|value| value - rough).sum::<f64>() / count
}

/// Returns the unbiased standard deviation; 0 for fewer than two values.
pub fn std(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitened_tokens_have_mean_zero_and_variance_one() {
        let rows = Rows::from_masks([&[true, true, false][..], &[true, true]]);
        let white = masked_whiten(&rows, &[1.0, 2.0, 100.0, 3.0, 6.0], true).unwrap();
        let moments = masked_moments(&rows, &white).unwrap();
        assert!(moments.mean.abs() < 1e-8, "{moments:?}");
        assert!((moments.var - 1.0).abs() < 1e-7, "{moments:?}");
    }

    #[test]
    fn one_token_has_no_variance() {
        let rows = Rows::from_masks([&[true, false][..]]);
        assert_eq!(masked_whiten(&rows, &[1.0, 2.0], true), Err(TooFewTokens { num_tokens: 1 }));
    }

    #[test]
    fn equal_values_have_exactly_their_own_mean() {
        for count in 1..20 {
            assert_eq!(mean(&vec![0.1; count]), 0.1);
        }
        assert_eq!(std(&[0.1, 0.1, 0.1]), 0.0);
        assert_eq!(std(&[1.0, 3.0]), 2.0_f64.sqrt());
    }
}
