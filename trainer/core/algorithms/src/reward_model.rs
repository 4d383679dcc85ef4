//! Losses of reward models: on pairs (Bradley-Terry), and on steps that are right or wrong (process rewards).
//!
//! Losses are means over the whole update, so the summands of micro-batches are added. Definitions follow TRL
//! 1.16 (`trl/trainer/reward_trainer.py`), and tests compare with its values and gradients.

use crate::preference::{log_sigmoid, sigmoid};
use crate::rows::RowsError;

/// Scores of the pairs of one micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct PairScores<'a> {
    /// Score of each chosen completion.
    pub chosen: &'a [f64],
    /// Score of each rejected completion.
    pub rejected: &'a [f64],
    /// Margin by which the chosen completion is better, in the unit of scores; `None` for 0.
    pub margins: Option<&'a [f64]>,
}

/// A micro-batch's part of the Bradley-Terry loss, with its gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairScoreLoss {
    /// Summand of the whole update's loss.
    pub loss: f64,
    /// d loss / d score of each chosen completion.
    pub dchosen: Vec<f64>,
    /// d loss / d score of each rejected completion.
    pub drejected: Vec<f64>,
    /// Number of pairs whose chosen score is above the rejected one.
    pub num_right: usize,
}

/// Computes -log sigmoid(chosen - rejected - margin) + `centring` x (chosen + rejected)^2, mean over
/// `num_pairs` of the whole update (arXiv 2203.02155; margin: 2307.09288; centring: 2312.09244).
///
/// # Errors
/// When the slices have different lengths.
pub fn bradley_terry(
    scores: &PairScores<'_>,
    centring: f64,
    num_pairs: usize,
) -> Result<PairScoreLoss, RowsError> {
    let expected = scores.chosen.len();
    let lengths =
        [("rejected", scores.rejected.len()), ("margins", scores.margins.map_or(expected, <[f64]>::len))];
    for (name, got) in lengths {
        if got != expected {
            return Err(RowsError::Length { name, expected, got });
        }
    }
    let share = 1.0 / num_pairs.max(1) as f64;
    let mut total = PairScoreLoss::default();
    for (idx, (chosen, rejected)) in scores.chosen.iter().zip(scores.rejected).enumerate() {
        let x = chosen - rejected - scores.margins.map_or(0.0, |margins| margins[idx]);
        let sum = chosen + rejected;
        total.loss += share * (centring * sum * sum - log_sigmoid(x));
        total.dchosen.push(share * (2.0 * centring * sum - sigmoid(-x)));
        total.drejected.push(share * (2.0 * centring * sum + sigmoid(-x)));
        total.num_right += usize::from(chosen > rejected);
    }
    Ok(total)
}

/// A micro-batch's part of the loss of process rewards, with its gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLoss {
    /// Summand of the whole update's loss.
    pub loss: f64,
    /// d loss / d logit of each step: wrong, right.
    pub dlogits: Vec<[f64; 2]>,
    /// Number of steps classified as their label says.
    pub num_right: usize,
}

/// Computes the cross-entropy of the two logits (wrong, right) at each step's separator, mean over
/// `num_steps` of the whole update (arXiv 2211.14275). Tokens that do not end a step have no logits here.
///
/// # Errors
/// When the number of labels is not that of the steps.
pub fn process_reward_loss(
    logits: &[[f64; 2]],
    labels: &[bool],
    num_steps: usize,
) -> Result<StepLoss, RowsError> {
    if logits.len() != labels.len() {
        let (expected, got) = (logits.len(), labels.len());
        return Err(RowsError::Length { name: "labels", expected, got });
    }
    let share = 1.0 / num_steps.max(1) as f64;
    let mut total = StepLoss::default();
    for ([wrong, right], label) in logits.iter().zip(labels) {
        let sign = if *label { 1.0 } else { -1.0 };
        let x = sign * (right - wrong);
        total.loss -= share * log_sigmoid(x);
        let slope = -share * sign * sigmoid(-x);
        total.dlogits.push([-slope, slope]);
        total.num_right += usize::from(x > 0.0);
    }
    Ok(total)
}
