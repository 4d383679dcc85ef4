//! Negative log-likelihood of good completions, as a term added to another loss.

use crate::rows::{Rows, RowsError};

/// A micro-batch's part of the imitation loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImitationLoss {
    /// Summand of the whole update's loss, in nats per token.
    pub loss: f64,
    /// d loss / d log-prob of each token; 0 where masked and in completions that are not good.
    pub dlogprobs: Vec<f64>,
}

/// Computes the mean negative log-prob of the tokens of good completions: VAPO's loss on positive examples
/// (arXiv 2504.05118, section 4.3, weight 0.1), and the likelihood of chosen completions in CPO and ORPO.
/// `num_good_tokens` counts those of the whole update.
///
/// # Errors
/// When a slice does not fit the rows.
pub fn imitation_loss(
    rows: &Rows,
    logprobs: &[f64],
    is_good: &[bool],
    num_good_tokens: usize,
) -> Result<ImitationLoss, RowsError> {
    rows.check_tokens("logprobs", logprobs)?;
    rows.check_rows("is_good", is_good)?;
    let share = 1.0 / num_good_tokens.max(1) as f64;
    let weights: Vec<f64> = is_good.iter().map(|good| if *good { share } else { 0.0 }).collect();
    let dlogprobs: Vec<f64> = rows.broadcast(&weights).into_iter().map(|weight| -weight).collect();
    // Log-probs of masked tokens are never read: they may be NaN.
    let loss = rows.valid(0..rows.num_tokens()).map(|token| dlogprobs[token] * logprobs[token]).sum();
    Ok(ImitationLoss { loss, dlogprobs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_good_completions_alone_are_imitated() {
        let rows = Rows::from_masks([&[true, true][..], &[true, false], &[true, true]]);
        let logprobs = [-1.0, -2.0, -4.0, f64::NAN, -8.0, -16.0];
        let got = imitation_loss(&rows, &logprobs, &[true, true, false], 3).unwrap();
        assert!((got.loss - 7.0 / 3.0).abs() < 1e-15);
        assert_eq!(
            got.dlogprobs.iter().map(|slope| slope * -3.0).collect::<Vec<_>>(),
            [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
        );
    }

    #[test]
    fn without_a_good_completion_nothing_is_imitated() {
        let rows = Rows::unmasked([2]);
        let got = imitation_loss(&rows, &[-1.0, -2.0], &[false], 0).unwrap();
        assert_eq!((got.loss, got.dlogprobs), (0.0, vec![0.0, 0.0]));
    }
}
