//! The critic's value loss.

use super::{Aggregation, Denominators, LossError};
use crate::rows::Rows;

/// Inputs of [`value_loss`], one value per token.
#[derive(Clone, Copy, Debug)]
pub struct ValueLossInputs<'a> {
    /// Sequences and loss masks of a micro-batch.
    pub rows: &'a Rows,
    /// Values that the critic predicts now.
    pub predictions: &'a [f64],
    /// Values that the critic predicted before the update.
    pub old_values: &'a [f64],
    /// Returns, the targets of the critic.
    pub returns: &'a [f64],
}

/// The critic's loss on a micro-batch, with its gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueLoss {
    /// Summand of the whole batch's loss.
    pub loss: f64,
    /// d loss / d prediction of each token.
    pub gradient: Vec<f64>,
    /// Number of counting tokens for which the clipped prediction decided (their fraction is verl's
    /// `vf_clipfrac`).
    pub num_clipped: usize,
}

/// Computes half the squared error of the prediction, or of the prediction clamped to within `clip` of the
/// old value, whichever is larger (arXiv 1707.06347), aggregated with the denominators of the whole batch.
///
/// # Errors
/// When a slice does not fit the rows.
pub fn value_loss(
    inputs: &ValueLossInputs<'_>,
    clip: f64,
    aggregation: Aggregation,
    batch: &Denominators,
) -> Result<ValueLoss, LossError> {
    let rows = inputs.rows;
    rows.check_tokens("predictions", inputs.predictions)?;
    rows.check_tokens("old_values", inputs.old_values)?;
    rows.check_tokens("returns", inputs.returns)?;
    let weights = aggregation.weights(rows, batch);
    let mut total = ValueLoss { loss: 0.0, gradient: vec![0.0; rows.num_tokens()], num_clipped: 0 };
    for token in rows.valid(0..rows.num_tokens()) {
        let (prediction, old) = (inputs.predictions[token], inputs.old_values[token]);
        let held = prediction.clamp(old - clip, old + clip);
        let (free_error, held_error) = (prediction - inputs.returns[token], held - inputs.returns[token]);
        let clipped = held_error * held_error > free_error * free_error;
        let error = if clipped { held_error } else { free_error };
        total.loss += 0.5 * weights[token] * error * error;
        total.gradient[token] = if clipped { 0.0 } else { weights[token] * error };
        total.num_clipped += usize::from(clipped);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss_of(predictions: &[f64], returns: &[f64]) -> ValueLoss {
        let rows = Rows::unmasked([predictions.len()]);
        let inputs = ValueLossInputs {
            rows: &rows,
            predictions,
            old_values: &[0.8, 1.0][..predictions.len()],
            returns,
        };
        value_loss(&inputs, 0.5, Aggregation::TokenMean, &Denominators::of(&rows)).unwrap()
    }

    #[test]
    fn value_loss_matches_the_hand_computed_table() {
        let got = loss_of(&[1.0, 2.0], &[0.0, 0.0]);
        assert!((got.loss - 1.25).abs() < 1e-12);
        assert_eq!((got.gradient, got.num_clipped), (vec![0.5, 1.0], 0));
    }

    #[test]
    fn a_prediction_beyond_the_clip_towards_its_target_has_no_gradient() {
        let got = loss_of(&[2.0], &[3.0]);
        assert_eq!((got.gradient[0], got.num_clipped), (0.0, 1));
        assert!((got.loss - 0.5 * 1.7 * 1.7).abs() < 1e-12);
    }
}
