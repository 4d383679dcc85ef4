//! The full objective of an update on pairs, evaluated over any of its micro-batches.

use std::iter::Sum;
use std::ops::Add;

use super::pair::{PairContext, PairFormula, Side};
use super::{Divergence, PreferenceLoss};
use crate::declaration::Family;
use crate::loss::{LossError, imitation_loss};
use crate::rows::{Rows, RowsError};

/// The objective of an update on pairs: loss = mean over pairs of (sum of weight x preference loss) x WPO's
/// weight + imitation x mean over chosen tokens of their negative log-prob.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferenceObjective {
    /// Preference losses and their weights.
    pub losses: Vec<(PreferenceLoss, f64)>,
    /// Divergence by which log-ratios become scores, in losses of the difference of two scores.
    pub divergence: Divergence,
    /// Weight of tokens beyond the length of the pair's shorter completion (LD-DPO's alpha, 0 to 1, arXiv
    /// 2409.06411); `None` for 1.
    pub desensitization: Option<f64>,
    /// Whether to weight a pair by how likely the actor is to sample it (WPO, arXiv 2406.11827, equation 2).
    pub weigh_by_policy: bool,
    /// Weight of the likelihood of chosen completions (TRL's `cpo_alpha`, its loss `sft`); 0 for none.
    pub imitation: f64,
}

/// The pairs of one micro-batch; slices have one value per token.
#[derive(Clone, Copy, Debug)]
pub struct PreferenceInputs<'a> {
    /// Completions and loss masks in the order chosen, rejected, chosen, rejected ..
    pub rows: &'a Rows,
    /// Log-probs under the actor.
    pub logprobs: &'a [f64],
    /// Log-probs under the reference; needed if a loss reads them.
    pub ref_logprobs: Option<&'a [f64]>,
    /// Logs of the sums of squared probabilities over the vocabulary, for
    /// [`PreferenceObjective::weigh_by_policy`].
    pub log_sum_squares: Option<&'a [f64]>,
    /// Mean log-ratio of all completions so far, those of this update included; read if
    /// [`PreferenceObjective::running_mean_beta`] is `Some`.
    pub mean_log_ratio: f64,
}

/// Pair and token counts of one update, over all its micro-batches on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferenceDenominators {
    /// Number of pairs.
    pub num_pairs: usize,
    /// Number of counting tokens of chosen completions.
    pub num_chosen_tokens: usize,
}

impl PreferenceDenominators {
    /// Counts the pairs and tokens of these rows; add the counts of all micro-batches and ranks.
    pub fn of(rows: &Rows) -> Self {
        let num_chosen_tokens = (0..rows.num_rows()).step_by(2).map(|row_idx| rows.valid_len(row_idx)).sum();
        Self { num_pairs: rows.num_rows() / 2, num_chosen_tokens }
    }

    /// Weight of a pair in a mean over all pairs.
    fn share(&self) -> f64 {
        1.0 / self.num_pairs.max(1) as f64
    }
}

impl Add for PreferenceDenominators {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            num_pairs: self.num_pairs + other.num_pairs,
            num_chosen_tokens: self.num_chosen_tokens + other.num_chosen_tokens,
        }
    }
}

impl Sum for PreferenceDenominators {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// A micro-batch's part of the preference loss, with its gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreferenceOutputs {
    /// Summand of the whole update's loss.
    pub loss: f64,
    /// d loss / d log-prob of each token; 0 where masked.
    pub dlogprobs: Vec<f64>,
    /// Summands of means over the update's pairs; add those of all micro-batches.
    pub metrics: PreferenceMetrics,
}

/// Metrics of an update's pairs, under TRL's names. A reward is beta x log-ratio of the first loss, or beta x
/// log-prob if that loss has no reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PreferenceMetrics {
    /// `rewards/chosen`: reward of a chosen completion.
    pub chosen_reward: f64,
    /// `rewards/rejected`: reward of a rejected completion.
    pub rejected_reward: f64,
    /// `rewards/accuracies`: fraction of pairs whose chosen reward is above the rejected one.
    pub accuracy: f64,
    /// `logps/chosen`: log-prob of a chosen completion.
    pub chosen_logprob: f64,
    /// `logps/rejected`: log-prob of a rejected completion.
    pub rejected_logprob: f64,
    /// Negative log-prob of a chosen token, before [`PreferenceObjective::imitation`].
    pub nll: f64,
}

impl PreferenceMetrics {
    /// Returns TRL's metrics of an update under TRL's names.
    pub fn values(&self) -> [(&'static str, f64); 7] {
        [
            ("rewards/chosen", self.chosen_reward),
            ("rewards/rejected", self.rejected_reward),
            ("rewards/margins", self.chosen_reward - self.rejected_reward),
            ("rewards/accuracies", self.accuracy),
            ("logps/chosen", self.chosen_logprob),
            ("logps/rejected", self.rejected_logprob),
            ("nll_loss", self.nll),
        ]
    }
}

impl PreferenceObjective {
    /// Makes an objective with a single loss and no other terms.
    pub fn new(loss: impl Into<PreferenceLoss>) -> Self {
        Self {
            losses: vec![(loss.into(), 1.0)],
            divergence: Divergence::ReverseKl,
            desensitization: None,
            weigh_by_policy: false,
            imitation: 0.0,
        }
    }

    /// Whether any loss reads log-probs under the reference.
    pub fn reads_reference(&self) -> bool {
        self.losses.iter().any(|(loss, _)| loss.formula().reads_reference())
    }

    /// Factor by which the mean log-ratio becomes the mean reward, of the first loss that subtracts it;
    /// `None` if none does.
    pub fn running_mean_beta(&self) -> Option<f64> {
        let mut formulas = self.losses.iter().map(|(loss, _)| loss.formula());
        formulas.find(|formula| formula.reads_running_mean()).map(PairFormula::beta)
    }

    /// Returns the log-ratio of actor to reference of each completion; 0 without a reference.
    ///
    /// # Errors
    /// When slices do not fit the rows.
    pub fn log_ratios(&self, inputs: &PreferenceInputs<'_>) -> Result<Vec<f64>, LossError> {
        inputs.rows.check_tokens("logprobs", inputs.logprobs)?;
        inputs.ref_logprobs.map_or(Ok(()), |all| inputs.rows.check_tokens("ref_logprobs", all))?;
        Ok(self.sides(inputs).into_iter().map(|side| side.log_ratio).collect())
    }

    /// Computes a micro-batch's part of the loss; `update` counts the whole update.
    ///
    /// # Errors
    /// When rows are not pairs, slices do not match them, one that the objective reads is missing, or a loss
    /// sorts the update and this is only a part of it.
    pub fn evaluate(
        &self,
        inputs: &PreferenceInputs<'_>,
        update: &PreferenceDenominators,
    ) -> Result<PreferenceOutputs, LossError> {
        self.check(inputs, update)?;
        let (rows, sides) = (inputs.rows, self.sides(inputs));
        let mut outputs =
            PreferenceOutputs { dlogprobs: vec![0.0; rows.num_tokens()], ..PreferenceOutputs::default() };
        self.add_losses(inputs, &sides, update, &mut outputs);
        let share = update.share();
        for pair in sides.chunks_exact(2) {
            self.record(&pair[0], &pair[1], share, &mut outputs.metrics);
        }
        let is_chosen: Vec<bool> = (0..rows.num_rows()).map(|row_idx| row_idx % 2 == 0).collect();
        let likelihood = imitation_loss(rows, inputs.logprobs, &is_chosen, update.num_chosen_tokens)?;
        outputs.metrics.nll = likelihood.loss;
        outputs.loss += self.imitation * likelihood.loss;
        for (sum, slope) in outputs.dlogprobs.iter_mut().zip(likelihood.dlogprobs) {
            *sum += self.imitation * slope;
        }
        Ok(outputs)
    }

    fn check(&self, inputs: &PreferenceInputs<'_>, update: &PreferenceDenominators) -> Result<(), LossError> {
        let rows = inputs.rows;
        if !rows.num_rows().is_multiple_of(2) {
            let (expected, got) = (rows.num_rows() + 1, rows.num_rows());
            return Err(RowsError::Length { name: "rows of pairs", expected, got }.into());
        }
        let num_pairs = rows.num_rows() / 2;
        if num_pairs != update.num_pairs && self.losses.iter().any(|(loss, _)| loss.sorts_update()) {
            let (expected, got) = (update.num_pairs, num_pairs);
            return Err(
                RowsError::Length { name: "pairs of a loss that sorts the update", expected, got }.into()
            );
        }
        rows.check_tokens("logprobs", inputs.logprobs)?;
        let missing = |loss, input| Err(LossError::Missing { loss, input });
        match inputs.ref_logprobs {
            Some(ref_logprobs) => rows.check_tokens("ref_logprobs", ref_logprobs)?,
            None => {
                let reader = self.losses.iter().find(|(loss, _)| loss.formula().reads_reference());
                reader.map_or(Ok(()), |(loss, _)| missing(loss.kind().name(), "ref_logprobs"))?;
            }
        }
        match inputs.log_sum_squares {
            Some(squares) => rows.check_tokens("log_sum_squares", squares)?,
            None if self.weigh_by_policy => return missing("wpo", "log_sum_squares"),
            None => {}
        }
        Ok(())
    }

    fn add_losses(
        &self,
        inputs: &PreferenceInputs<'_>,
        sides: &[Side],
        update: &PreferenceDenominators,
        outputs: &mut PreferenceOutputs,
    ) {
        let context = PairContext { divergence: self.divergence, mean_log_ratio: inputs.mean_log_ratio };
        let of_pair = |pair_idx: usize| {
            let rows = [2 * pair_idx, 2 * pair_idx + 1];
            let is_weighed = self.weigh_by_policy;
            let likelihoods = || rows.map(|row_idx| likelihood(inputs, row_idx)).iter().product();
            update.share() * if is_weighed { likelihoods() } else { 1.0 }
        };
        let weights: Vec<f64> = (0..sides.len() / 2).map(of_pair).collect();
        let mut slopes = vec![0.0; sides.len()];
        for (loss, weight) in &self.losses {
            for matched in loss.formula().matching().of(sides) {
                let ([chosen, rejected], [chosen_row, rejected_row]) = (&matched.sides, matched.rows);
                let pair = loss.formula().pair(chosen, rejected, &context);
                let pair_weight = weights[chosen_row / 2];
                outputs.loss += pair_weight * weight * pair.value;
                slopes[chosen_row] += pair_weight * weight * pair.chosen;
                slopes[rejected_row] += pair_weight * weight * pair.rejected;
            }
        }
        for (row_idx, slope) in slopes.into_iter().enumerate() {
            let shared = shared_len(inputs.rows, row_idx);
            for (position, token) in inputs.rows.valid(inputs.rows.range(row_idx)).enumerate() {
                outputs.dlogprobs[token] += slope * self.token_weight(position, shared);
            }
        }
    }

    /// Weight of a token: reduced for positions from `shared` on, the length of the shorter completion.
    fn token_weight(&self, position: usize, shared: usize) -> f64 {
        self.desensitization.filter(|_| position >= shared).unwrap_or(1.0)
    }

    fn sides(&self, inputs: &PreferenceInputs<'_>) -> Vec<Side> {
        (0..inputs.rows.num_rows()).map(|row_idx| self.side(inputs, row_idx)).collect()
    }

    fn side(&self, inputs: &PreferenceInputs<'_>, row_idx: usize) -> Side {
        let (rows, shared) = (inputs.rows, shared_len(inputs.rows, row_idx));
        let sum = |values: &[f64]| -> f64 {
            let tokens = rows.valid(rows.range(row_idx)).enumerate();
            tokens.map(|(position, token)| self.token_weight(position, shared) * values[token]).sum()
        };
        let logprob = sum(inputs.logprobs);
        let log_ratio = inputs.ref_logprobs.map_or(0.0, |reference| logprob - sum(reference));
        Side { logprob, log_ratio, num_tokens: rows.valid_len(row_idx) as f64 }
    }

    fn record(&self, chosen: &Side, rejected: &Side, share: f64, metrics: &mut PreferenceMetrics) {
        let Some((loss, _)) = self.losses.first() else { return };
        let formula = loss.formula();
        let reward = |side: &Side| {
            formula.beta() * if formula.reads_reference() { side.log_ratio } else { side.logprob }
        };
        metrics.chosen_reward += share * reward(chosen);
        metrics.rejected_reward += share * reward(rejected);
        metrics.chosen_logprob += share * chosen.logprob;
        metrics.rejected_logprob += share * rejected.logprob;
        metrics.accuracy += if reward(chosen) > reward(rejected) { share } else { 0.0 };
    }
}

/// Number of counting tokens of the shorter completion of a row's pair.
fn shared_len(rows: &Rows, row_idx: usize) -> usize {
    let pair = [row_idx & !1, row_idx | 1].into_iter().filter(|row_idx| *row_idx < rows.num_rows());
    pair.map(|row_idx| rows.valid_len(row_idx)).min().unwrap_or(0)
}

/// Returns exp of the mean of log p - log sum p^2 over a completion: how likely the actor is to sample it,
/// relative to its own samples. It is a constant for the gradient.
fn likelihood(inputs: &PreferenceInputs<'_>, row_idx: usize) -> f64 {
    let rows = inputs.rows;
    let aligned =
        |token: usize| inputs.logprobs[token] - inputs.log_sum_squares.map_or(0.0, |all| all[token]);
    let sum: f64 = rows.valid(rows.range(row_idx)).map(aligned).sum();
    (sum / rows.valid_len(row_idx).max(1) as f64).exp()
}
