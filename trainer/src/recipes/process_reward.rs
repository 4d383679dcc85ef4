//! A process reward model (arXiv 2211.14275): it classifies each step as right or wrong at the step's end.

use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::labelled::JudgedSteps;
use rlt_core::metrics::Metrics;
use rlt_core::preferences::PreferenceExample;
use rlt_data::Pipeline;

use super::Recipe;
use crate::roles::{Roles, StepError};

/// Training of a process reward model with a head of two outputs. One step: classify the steps of a data
/// set's completions, compute the loss, update.
pub struct ProcessReward {
    /// Number of completions per step.
    pub batch_size: usize,
}

impl Recipe for ProcessReward {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let examples = data.next_preferences(self.batch_size)?.ok_or(StepError::NoPreferences)?;
        let (batch, judged) = judge(roles, &examples)?;
        roles.context().record(metrics(&judged));
        roles.actor.update_by_label_gradient(&batch, &judged.dlabels)
    }

    fn evaluate(&self, roles: &mut Roles, data: &Pipeline) -> Result<Metrics, StepError> {
        let examples = data.held_out_preferences();
        if examples.is_empty() { Ok(Metrics::new()) } else { Ok(metrics(&judge(roles, examples)?.1)) }
    }
}

fn judge(roles: &Roles, examples: &[Arc<PreferenceExample>]) -> Result<(Batch, JudgedSteps), StepError> {
    let batch = Batch::to_judge(examples);
    let labels = roles.actor.labels(&batch)?;
    let judged = JudgedSteps::of(examples, &labels)?;
    Ok((batch, judged))
}

fn metrics(judged: &JudgedSteps) -> Metrics {
    let [right, wrong] = judged.accuracies;
    let values = [
        ("reward_model/loss", Some(judged.loss)),
        ("steps/accuracy", Some(judged.accuracy)),
        ("steps/accuracy_of_right", right),
        ("steps/accuracy_of_wrong", wrong),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
