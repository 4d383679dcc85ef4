//! KTO (arXiv 2402.01306): completions that are each desirable or not.

use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::kto::{Kto, KtoInputs, KtoOutputs, ReferencePoint};
use rlt_core::metrics::Metrics;
use rlt_core::preferences::PreferenceExample;

use super::Recipe;
use crate::data::Data;
use crate::roles::{Roles, StepError};

/// One step: measure the reference point on mismatched completions, score the completions, evaluate, update.
pub struct LabelledCompletions {
    /// Prompts of one step.
    pub batch_size: usize,
    /// How completions become a loss.
    pub kto: Kto,
}

impl Recipe for LabelledCompletions {
    fn step(&mut self, roles: &mut Roles, data: &mut Data) -> Result<(), StepError> {
        let examples = data.next_preferences(self.batch_size)?.ok_or(StepError::NoPreferences)?;
        let (batch, outputs, point) = self.evaluate_on(roles, &examples)?;
        roles.context().record(metrics(&outputs, &point));
        roles.actor.descend(batch, &outputs.dlogprobs)
    }

    fn evaluate(&self, roles: &mut Roles, data: &Data) -> Result<Metrics, StepError> {
        let examples = data.held_out_preferences();
        if examples.is_empty() {
            return Ok(Metrics::new());
        }
        let (_, outputs, point) = self.evaluate_on(roles, examples)?;
        Ok(metrics(&outputs, &point))
    }
}

impl LabelledCompletions {
    fn evaluate_on(
        &self,
        roles: &mut Roles,
        examples: &[Arc<PreferenceExample>],
    ) -> Result<(Batch, KtoOutputs, ReferencePoint), StepError> {
        let point = self.reference_point(roles, examples)?;
        let batch = roles.reference.score_once(&roles.actor, Batch::from_preferences(examples))?;
        let batch = roles.actor.score(batch)?;
        let labels: Vec<bool> = examples.iter().flat_map(|example| example.labels.iter().copied()).collect();
        let (logprobs, ref_logprobs) = both(&batch);
        let inputs = KtoInputs { rows: &batch.rows, logprobs, ref_logprobs, labels: &labels };
        let outputs = self.kto.evaluate(&inputs, &point, labels.len())?;
        Ok((batch, outputs, point))
    }

    /// Measured on completions behind prompts that are not theirs, where the loss reads it.
    fn reference_point(
        &self,
        roles: &mut Roles,
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
}

/// Log-probs under actor and reference, which have been filled in.
fn both(batch: &Batch) -> (&[f64], &[f64]) {
    (batch.old_logprobs.as_deref().unwrap_or_default(), batch.ref_logprobs.as_deref().unwrap_or_default())
}

/// TRL's metrics under TRL's names, and the loss; nothing of a label that no completion has.
fn metrics(outputs: &KtoOutputs, point: &ReferencePoint) -> Metrics {
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
