//! Held-out prompts: sampled, judged, summed up. Nothing is learned from them.

use std::sync::Arc;

use rlt_core::held_out::held_out_metrics;
use rlt_core::metrics::Metrics;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::Prompt;

use crate::error::TrainError;
use crate::phases::PhaseClock;
use crate::step::{Sampling, sample_groups, training_sampling};
use crate::tracking::console::Phase;
use crate::trainer::{SeedStream, Trainer};

/// What the held-out prompts say.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean score over all held-out prompts and samples.
    pub reward: f64,
    metrics: Metrics,
}

impl Evaluation {
    /// What [`held_out_metrics`] names, and `timing_s/testing`.
    pub fn into_metrics(self) -> Metrics {
        self.metrics
    }
}

/// Samples every held-out prompt under the present weights; `None` without held-out prompts or rewards, or
/// when the run was asked to stop.
///
/// # Errors
/// [`TrainError`].
pub fn evaluate(trainer: &mut Trainer) -> Result<Option<Evaluation>, TrainError> {
    if trainer.held_out.is_empty() || trainer.spec().rewards.functions.is_empty() {
        return Ok(None);
    }
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "testing").entered();
    let mut clock = PhaseClock::start();
    trainer.sync_weights()?;
    let prompts: Vec<Arc<Prompt>> = trainer.held_out.items().to_vec();
    let held_out = trainer.spec().rollout.held_out.clone();
    let sampling = SamplingParams { temperature: held_out.temperature, ..training_sampling(trainer) };
    let num_samples = held_out.samples_per_prompt;
    let how = Sampling { phase: Phase::Evaluation, stream: SeedStream::Evaluation, sampling, num_samples };
    // The same seeds at every evaluation, so that two evaluations differ by the weights alone.
    let sampled = sample_groups(trainer, &prompts, &how, &[], &mut clock)?;
    trainer.end_rollout();
    let Some(groups) = sampled.map(|sampled| sampled.groups) else { return Ok(None) };
    trainer.watch.completions(trainer.progress.step, true, &groups);
    let mut metrics = held_out_metrics(&groups, num_samples);
    metrics.insert("timing_s/testing".into(), clock.total_seconds());
    Ok(metrics.get("val-core/reward/mean").copied().map(|reward| Evaluation { reward, metrics }))
}
