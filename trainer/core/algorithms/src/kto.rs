//! KTO: learning from single completions labelled good or bad, without pairs (arXiv 2402.01306).
//!
//! A completion is compared with the reference point z, the divergence of the actor from the reference on
//! completions that do not belong to their prompts. z is one value for the **whole** update, computed before
//! any loss ([`ReferencePoint`]), so that results do not depend on the split into micro-batches; TRL uses
//! that of a micro-batch. Definitions follow TRL 1.16 (`trl/trainer/kto_trainer.py`), and tests compare with
//! its values and gradients.

use std::ops::AddAssign;

use serde::Serialize;

use crate::preference::{log_ratio_sums, sigmoid};
use crate::rows::{Rows, RowsError};

/// Parameters of KTO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kto {
    /// Strength with which the actor is held near the reference: the factor of log-ratios. TRL's default is
    /// 0.1.
    pub beta: f64,
    /// Weight of good completions. The number of completions times their weight should be 1 to 4/3 times as
    /// large for one kind as for the other.
    pub desirable_weight: f64,
    /// Weight of bad completions.
    pub undesirable_weight: f64,
    /// Whether completions are compared with z. If not, they are compared with 0 (TRL's loss
    /// `apo_zero_unpaired`).
    pub reference_point: bool,
}

/// Inputs of [`Kto::evaluate`] for a micro-batch; slices of log-probs have one value per token.
#[derive(Clone, Copy, Debug)]
pub struct KtoInputs<'a> {
    /// Completions and loss masks.
    pub rows: &'a Rows,
    /// Log-probs under the actor.
    pub logprobs: &'a [f64],
    /// Log-probs under the reference.
    pub ref_logprobs: &'a [f64],
    /// Whether each completion is good.
    pub labels: &'a [bool],
}

/// A micro-batch's share of the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct KtoOutputs {
    /// Summand of the whole update's loss, a mean over its completions.
    pub loss: f64,
    /// d loss / d log-prob of each token; 0 where masked.
    pub dlogprobs: Vec<f64>,
    /// Sums over the good completions.
    pub good: KtoSums,
    /// Sums over the bad completions.
    pub bad: KtoSums,
}

/// Sums of an update over the completions of one label; add those of all micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KtoSums {
    /// Sum of beta x log-ratio.
    pub reward: f64,
    /// Sum of log-probs under the actor.
    pub logprob: f64,
    /// Number of completions.
    pub num_completions: usize,
}

impl KtoSums {
    /// Mean reward of a completion; `None` without any.
    pub fn mean_reward(&self) -> Option<f64> {
        (self.num_completions > 0).then(|| self.reward / self.num_completions as f64)
    }

    /// Mean log-prob of a completion; `None` without any.
    pub fn mean_logprob(&self) -> Option<f64> {
        (self.num_completions > 0).then(|| self.logprob / self.num_completions as f64)
    }
}

/// Sums over mismatched completions, which do not belong to their prompts; add those of all micro-batches and
/// ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReferencePoint {
    sum: f64,
    num_completions: usize,
}

impl ReferencePoint {
    /// Computes the sums of mismatched completions from their log-probs under actor and reference.
    ///
    /// # Errors
    /// When a slice does not hold one value per token.
    pub fn of(rows: &Rows, logprobs: &[f64], ref_logprobs: &[f64]) -> Result<Self, RowsError> {
        let ratios = log_ratio_sums(rows, logprobs, ref_logprobs)?;
        Ok(Self { sum: ratios.iter().sum(), num_completions: ratios.len() })
    }

    /// Returns z, the mean log-ratio of a completion, at least 0. Without any completion it is 0.
    pub fn z(&self) -> f64 {
        (self.sum / self.num_completions.max(1) as f64).max(0.0)
    }
}

impl AddAssign for ReferencePoint {
    fn add_assign(&mut self, other: Self) {
        self.sum += other.sum;
        self.num_completions += other.num_completions;
    }
}

impl Kto {
    /// Computes the loss: weight x (1 - sigmoid(beta (u - z))) of a good completion with log-ratio u, weight
    /// x (1 - sigmoid(beta (z - u))) of a bad one, over `num_completions` of the whole update.
    ///
    /// # Errors
    /// When a slice does not fit the rows.
    pub fn evaluate(
        &self,
        inputs: &KtoInputs<'_>,
        point: &ReferencePoint,
        num_completions: usize,
    ) -> Result<KtoOutputs, RowsError> {
        let rows = inputs.rows;
        rows.check_rows("labels", inputs.labels)?;
        let ratios = log_ratio_sums(rows, inputs.logprobs, inputs.ref_logprobs)?;
        let share = 1.0 / num_completions.max(1) as f64;
        let z = if self.reference_point { point.z() } else { 0.0 };
        let logprobs = rows.masked_sums(inputs.logprobs);
        let (mut loss, mut good, mut bad) = (0.0, KtoSums::default(), KtoSums::default());
        let mut slopes = Vec::with_capacity(ratios.len());
        for ((ratio, logprob), is_good) in ratios.iter().zip(logprobs).zip(inputs.labels) {
            let sums = if *is_good { &mut good } else { &mut bad };
            sums.reward += self.beta * ratio;
            sums.logprob += logprob;
            sums.num_completions += 1;
            let (weight, sign) =
                if *is_good { (self.desirable_weight, 1.0) } else { (self.undesirable_weight, -1.0) };
            let x = sign * self.beta * (ratio - z);
            loss += share * weight * (1.0 - sigmoid(x));
            slopes.push(-share * weight * sign * self.beta * sigmoid(x) * sigmoid(-x));
        }
        Ok(KtoOutputs { loss, dlogprobs: rows.broadcast(&slopes), good, bad })
    }
}
