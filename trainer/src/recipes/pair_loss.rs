//! The loss of a batch of pairs as recipes use it: what it reads of the roles, and what it reports.

use rlt_api::resolved::PairPreference;
use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_core::preference::{
    PreferenceDenominators, PreferenceInputs, PreferenceObjective, PreferenceOutputs,
};

use crate::roles::objective::preference_objective;
use crate::roles::{Roles, StepError};

/// How a batch of pairs becomes a loss.
#[derive(Clone, Debug)]
pub struct PairLoss(PreferenceObjective);

impl PairLoss {
    /// As the manifest says.
    pub fn of(preference: &PairPreference) -> Self {
        Self(preference_objective(preference))
    }

    /// Loss and derivatives of a batch whose rows are chosen, rejected, chosen .., with the log-probs of
    /// actor and reference.
    ///
    /// # Errors
    /// [`StepError::Loss`] when log-probs are missing.
    pub fn evaluate(&self, roles: &Roles, batch: &Batch) -> Result<PreferenceOutputs, StepError> {
        let squares = self.0.weigh_by_policy.then(|| roles.actor.sum_pi_squared(batch)).transpose()?;
        let log_sum_squares: Option<Vec<f64>> =
            squares.map(|squares| squares.into_iter().map(f64::ln).collect());
        let inputs = PreferenceInputs {
            rows: &batch.rows,
            logprobs: batch.old_logprobs.as_deref().unwrap_or_default(),
            ref_logprobs: batch.ref_logprobs.as_deref(),
            log_sum_squares: log_sum_squares.as_deref(),
        };
        Ok(self.0.evaluate(&inputs, &PreferenceDenominators::of(&batch.rows))?)
    }

    /// TRL's metrics under TRL's names, and the loss.
    pub fn metrics(outputs: &PreferenceOutputs) -> Metrics {
        let values = outputs.metrics.values().into_iter().chain([("preference/loss", outputs.loss)]);
        values.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
