//! Loss of completions with labels (KTO): its inputs from the roles, and its metrics.

use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::kto::{Kto, KtoInputs, KtoOutputs, ReferencePoint};
use rlt_core::metrics::Metrics;
use rlt_core::preferences::PreferenceExample;

use crate::roles::{Roles, StepError};

/// Loss of a batch of completions that are each desirable or not.
#[derive(Clone, Copy, Debug)]
pub struct LabelLoss {
    kto: Kto,
}

impl LabelLoss {
    /// Creates the loss with the options `kto`.
    pub fn of(kto: &Kto) -> Self {
        Self { kto: *kto }
    }

    /// Measures KTO's reference point, the divergence of the actor from the reference on mismatched
    /// completions; the default where the loss does not read it.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn reference_point(
        &self,
        roles: &Roles,
        examples: &[Arc<PreferenceExample>],
    ) -> Result<ReferencePoint, StepError> {
        if !self.kto.reference_point {
            return Ok(ReferencePoint::default());
        }
        let mismatched = Batch::from_mismatched(examples);
        let mismatched = roles.actor.score(roles.reference.score(&roles.actor, mismatched)?)?;
        let (logprobs, ref_logprobs) = both(&mismatched);
        Ok(ReferencePoint::of(&mismatched.rows, logprobs, ref_logprobs)?)
    }

    /// Returns the completions with their log-probs under reference and actor.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn score(roles: &mut Roles, examples: &[Arc<PreferenceExample>]) -> Result<Batch, StepError> {
        let batch = roles.reference.score_once(&roles.actor, Batch::from_preferences(examples))?;
        roles.actor.score(batch)
    }

    /// Computes the loss of scored completions and its derivatives.
    ///
    /// # Errors
    /// [`StepError::Failed`] when log-probs are missing.
    pub fn evaluate(
        &self,
        batch: &Batch,
        examples: &[Arc<PreferenceExample>],
        point: &ReferencePoint,
    ) -> Result<KtoOutputs, StepError> {
        let labels: Vec<bool> = examples.iter().flat_map(|example| example.labels.iter().copied()).collect();
        let (logprobs, ref_logprobs) = both(batch);
        let inputs = KtoInputs { rows: &batch.rows, logprobs, ref_logprobs, labels: &labels };
        Ok(self.kto.evaluate(&inputs, point, labels.len())?)
    }

    /// Returns TRL's metrics under TRL's names, and the loss. Metrics of a label that no completion has are
    /// left out.
    pub fn metrics(outputs: &KtoOutputs, point: &ReferencePoint) -> Metrics {
        let (good, bad) = (&outputs.good, &outputs.bad);
        let margin = good.mean_reward().zip(bad.mean_reward()).map(|(good, bad)| good - bad);
        let values = [
            ("preference/loss", Some(outputs.loss)),
            ("kl", Some(point.z())),
            ("rewards/chosen", good.mean_reward()),
            ("rewards/rejected", bad.mean_reward()),
            ("rewards/margins", margin),
            ("logps/chosen", good.mean_logprob()),
            ("logps/rejected", bad.mean_logprob()),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Returns the log-probs under the actor and the reference; empty where they are missing.
fn both(batch: &Batch) -> (&[f64], &[f64]) {
    (batch.old_logprobs.as_deref().unwrap_or_default(), batch.ref_logprobs.as_deref().unwrap_or_default())
}
