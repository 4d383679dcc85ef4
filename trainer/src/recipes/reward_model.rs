//! A reward model from pairs (Bradley-Terry, arXiv 2203.02155): chosen completions score above rejected ones.

use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::labelled::ScoredPairs;
use rlt_core::metrics::Metrics;
use rlt_core::preferences::PreferenceExample;
use rlt_data::Pipeline;

use super::Recipe;
use crate::roles::{Roles, StepError};

/// Training of a reward model with a head of one output. One step: score the pairs of a data set, compute the
/// loss, update.
pub struct RewardModel {
    /// Number of pairs per step.
    pub batch_size: usize,
    /// Coefficient of the squared sum of a pair's scores in the loss, which keeps scores centred on 0.
    pub centring: f64,
}

impl Recipe for RewardModel {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let pairs = data.next_preferences(self.batch_size)?.ok_or(StepError::NoPreferences)?;
        let (batch, scored) = self.score(roles, &pairs)?;
        roles.context().record(metrics(&scored));
        roles.actor.update_by_label_gradient(&batch, &[scored.dscores])
    }

    fn evaluate(&self, roles: &mut Roles, data: &Pipeline) -> Result<Metrics, StepError> {
        let pairs = data.held_out_preferences();
        if pairs.is_empty() { Ok(Metrics::new()) } else { Ok(metrics(&self.score(roles, pairs)?.1)) }
    }
}

impl RewardModel {
    fn score(
        &self,
        roles: &Roles,
        pairs: &[Arc<PreferenceExample>],
    ) -> Result<(Batch, ScoredPairs), StepError> {
        let batch = Batch::to_score(pairs, roles.actor.pad());
        let [scores] = roles.actor.labels(&batch)?;
        let scored = ScoredPairs::of(pairs, &scores, self.centring)?;
        Ok((batch, scored))
    }
}

fn metrics(scored: &ScoredPairs) -> Metrics {
    let values = [
        ("reward_model/loss", scored.loss),
        ("rewards/chosen", scored.chosen),
        ("rewards/rejected", scored.rejected),
        ("rewards/margins", scored.chosen - scored.rejected),
        ("rewards/accuracies", scored.accuracy),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}
