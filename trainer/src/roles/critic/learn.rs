//! Updates of the critic on a batch: as many as the actor's, on the same rollout groups.

use rlt_api::ExitCode;
use rlt_core::batch::Batch;
use rlt_core::loss::Denominators;
use rlt_core::metrics::{Metrics, summarize};
use rlt_parallel::{RankError, Ranks};

use super::Critic;
use super::value_loss::{Targets, ValueLoss, ValueSums};
use crate::roles::error::StepFault;
use crate::roles::learner::{LearnerError, MiniBatches, UpdateStats};

/// An error of updating the critic.
#[derive(Debug, thiserror::Error)]
pub enum CriticError {
    /// The batch has no values or no returns.
    #[error("the batch has no {0} for the critic")]
    Missing(&'static str),
    /// The critic's gradients could not be computed or applied.
    #[error(transparent)]
    Learner(#[from] LearnerError),
}

impl StepFault for CriticError {
    fn act(&self) -> &'static str {
        "failed to update the critic"
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Learner(error) => error.exit_code(),
            Self::Missing(_) => ExitCode::Failure,
        }
    }
}

/// The report of the critic's updates in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CriticReport {
    /// Sum of the losses of all updates.
    loss: f64,
    /// Sum of the predicted values of all counted tokens, in all updates.
    prediction_sum: f64,
    num_clipped: f64,
    num_tokens: f64,
    /// Number of forward and backward passes.
    num_micro_batches: f64,
    /// Outcomes of the updates.
    pub updates: UpdateStats,
    learning_rate: f64,
}

impl CriticReport {
    /// Returns the metrics under verl's names: `critic/vf_loss`, `critic/vf_clipfrac`, `critic/vpred_mean`,
    /// `critic/grad_norm`, `critic/lr`; and `critic/num_micro_batches`; in half precision `critic/loss_scale`
    /// and `critic/num_overflows`.
    pub fn metrics(&self) -> Metrics {
        let num_updates = self.updates.num_updates();
        let num_tokens = self.num_tokens.max(1.0);
        let mut metrics = Metrics::from([
            ("critic/vf_loss".into(), self.loss / num_updates),
            ("critic/vf_clipfrac".into(), self.num_clipped / num_tokens),
            ("critic/vpred_mean".into(), self.prediction_sum / num_tokens),
            ("critic/lr".into(), self.learning_rate),
            ("critic/num_micro_batches".into(), self.num_micro_batches),
        ]);
        metrics.extend(self.updates.metrics("critic"));
        metrics
    }
}

/// Returns metrics of values and returns over the counted tokens: `critic/values`, `critic/returns`, and
/// `critic/vf_explained_var`, the share of the returns' variance that the values explain.
pub fn value_metrics(batch: &Batch) -> Metrics {
    let mut metrics = Metrics::new();
    let (Some(values), Some(returns)) = (&batch.values, &batch.returns) else { return metrics };
    let counted: Vec<usize> = batch.rows.valid(0..batch.rows.num_tokens()).collect();
    summarize(&mut metrics, "critic/values", counted.iter().map(|token| values[*token]));
    summarize(&mut metrics, "critic/returns", counted.iter().map(|token| returns[*token]));
    let errors = counted.iter().map(|token| returns[*token] - values[*token]);
    let unexplained = variance(errors) / (variance(counted.iter().map(|token| returns[*token])) + 1e-5);
    metrics.insert("critic/vf_explained_var".into(), 1.0 - unexplained);
    metrics
}

/// Computes the variance with Bessel's correction, as torch does; 0 for fewer than two numbers.
fn variance(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = numbers.clone().count() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = numbers.clone().sum::<f64>() / count;
    numbers.map(|number| (number - mean).powi(2)).sum::<f64>() / (count - 1.0)
}

impl Critic {
    /// Updates the critic on `batch`, whose values and returns are filled in, as `mini_batches` split it.
    ///
    /// # Errors
    /// [`CriticError`]; weights are those after the last applied update.
    pub fn learn(&mut self, batch: &Batch, mini_batches: MiniBatches) -> Result<CriticReport, CriticError> {
        let targets = Targets {
            values: batch.values.as_deref().ok_or(CriticError::Missing("values"))?,
            returns: batch.returns.as_deref().ok_or(CriticError::Missing("returns"))?,
        };
        let learning_rate = self.options.critic.learning_rate;
        let mut report = CriticReport { learning_rate, ..CriticReport::default() };
        mini_batches.for_each_update(batch, |_, row_idxs| {
            self.update(batch, row_idxs, mini_batches.max_tokens, targets, &mut report)
        })?;
        report.updates.set_loss_scale(self.learner.loss_scale());
        report.add_up(self.learner.ranks()).map_err(LearnerError::from)?;
        Ok(report)
    }

    /// Makes one optimizer update on the rows `row_idxs`.
    fn update(
        &mut self,
        batch: &Batch,
        row_idxs: &[usize],
        max_tokens: usize,
        targets: Targets<'_>,
        report: &mut CriticReport,
    ) -> Result<(), LearnerError> {
        let passes = self.learner.passes(batch, row_idxs, max_tokens)?;
        let mut loss = ValueLoss {
            head_d: &self.head_d,
            batch,
            targets,
            denominators: Denominators::of(&batch.micro_rows(row_idxs)),
            clip: self.options.critic.value_clip,
        };
        let sums = self.learner.update(&passes, &mut loss, report.learning_rate, &mut report.updates)?;
        if self.learner.ranks().is_sp_leader() {
            sums.iter().for_each(|sums| report.add(sums));
        }
        Ok(())
    }
}

impl CriticReport {
    /// All-reduces the sums of the report over ranks.
    fn add_up(&mut self, ranks: &Ranks) -> Result<(), RankError> {
        let Self { loss, prediction_sum, num_clipped, num_tokens, num_micro_batches, .. } = self;
        let all = [loss, prediction_sum, num_clipped, num_tokens, num_micro_batches];
        let mut sums: Vec<f64> = all.iter().map(|sum| **sum).collect();
        ranks.all_reduce(&mut [&mut sums])?;
        all.into_iter().zip(sums).for_each(|(own, of_all)| *own = of_all);
        Ok(())
    }

    fn add(&mut self, sums: &ValueSums) {
        self.num_micro_batches += 1.0;
        self.loss += sums.loss;
        self.num_clipped += sums.num_clipped;
        self.prediction_sum += sums.prediction_sum;
        self.num_tokens += sums.num_tokens;
    }
}
