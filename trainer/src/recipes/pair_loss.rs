//! The loss of a batch of pairs: its inputs from the roles, its state between updates, and its metrics.
//!
//! The loss of a pair needs the log-probs of both completions. All log-probs of a step are computed first,
//! and the update descends along the derivatives of the loss with respect to them. That costs a forward
//! pass; in return a token budget, ranks or sequence parallelism may split a pair, and the update has no
//! special case.

use rlt_api::resolved::PairPreference;
use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_core::preference::{
    PreferenceDenominators, PreferenceInputs, PreferenceObjective, PreferenceOutputs, RunningMean,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::roles::objective::preference_objective;
use crate::roles::{Roles, StepError};

/// Loss of a batch of preference pairs.
#[derive(Clone, Debug)]
pub struct PairLoss {
    objective: PreferenceObjective,
    /// Running mean of the log-ratios of all completions trained on so far.
    log_ratios: RunningMean,
}

/// State of a [`PairLoss`] in a checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    log_ratios: RunningMean,
}

impl PairLoss {
    /// Creates the loss of `preference`, with an empty running mean.
    pub fn of(preference: &PairPreference) -> Self {
        Self { objective: preference_objective(preference), log_ratios: RunningMean::default() }
    }

    /// Returns the loss for an update on `batch`. Where a loss reads the running mean, the mean includes the
    /// batch. The caller replaces `self` with it once the update has succeeded.
    ///
    /// # Errors
    /// [`StepError::Failed`] when log-probs do not fit.
    pub fn with(&self, batch: &Batch) -> Result<Self, StepError> {
        if self.objective.running_mean_beta().is_none() {
            return Ok(self.clone());
        }
        let log_ratios = self.objective.log_ratios(&self.inputs(batch, None))?;
        Ok(Self { objective: self.objective.clone(), log_ratios: self.log_ratios.with(&log_ratios) })
    }

    /// Computes the loss of a batch and its derivatives. Rows alternate between chosen and rejected, and have
    /// the log-probs of actor and reference.
    ///
    /// # Errors
    /// [`StepError::Failed`] when log-probs are missing.
    pub fn evaluate(&self, roles: &Roles, batch: &Batch) -> Result<PreferenceOutputs, StepError> {
        let squares =
            self.objective.weigh_by_policy.then(|| roles.actor.sum_pi_squared(batch)).transpose()?;
        let log_sum_squares: Option<Vec<f64>> =
            squares.map(|squares| squares.into_iter().map(f64::ln).collect());
        let inputs = self.inputs(batch, log_sum_squares.as_deref());
        Ok(self.objective.evaluate(&inputs, &PreferenceDenominators::of(&batch.rows))?)
    }

    fn inputs<'a>(&self, batch: &'a Batch, log_sum_squares: Option<&'a [f64]>) -> PreferenceInputs<'a> {
        PreferenceInputs {
            rows: &batch.rows,
            logprobs: batch.old_logprobs.as_deref().unwrap_or_default(),
            ref_logprobs: batch.ref_logprobs.as_deref(),
            log_sum_squares,
            mean_log_ratio: self.log_ratios.mean(),
        }
    }

    /// Returns TRL's metrics under TRL's names, and the loss.
    pub fn metrics(&self, outputs: &PreferenceOutputs) -> Metrics {
        let mean = self.objective.running_mean_beta().map(|beta| ("delta", beta * self.log_ratios.mean()));
        let values = outputs.metrics.values().into_iter().chain([("preference/loss", outputs.loss)]);
        values.chain(mean).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns the state for a checkpoint; null if no loss reads the running mean.
    pub fn state(&self) -> Value {
        let is_read = self.objective.running_mean_beta().is_some();
        let state = || serde_json::to_value(State { log_ratios: self.log_ratios }).unwrap_or_default();
        if is_read { state() } else { Value::Null }
    }

    /// Restores the [`Self::state`] of a checkpoint.
    ///
    /// # Errors
    /// When the state is of another recipe.
    pub fn resume(&mut self, state: Value) -> Result<(), serde_json::Error> {
        let state: Option<State> = serde_json::from_value(state)?;
        self.log_ratios = state.unwrap_or_default().log_ratios;
        Ok(())
    }
}
