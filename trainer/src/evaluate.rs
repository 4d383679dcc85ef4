//! Held-out prompts: sampled, judged, summed up. Nothing is learned from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlt_core::metrics::Metrics;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Prompt, RewardStatus, RolloutGroup};

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
    /// `val-core/<source>/reward/{mean,best}@<samples>`, `val-core/reward/mean`, `val-aux/response_length/mean`,
    /// `timing_s/testing`.
    pub fn into_metrics(self) -> Metrics {
        self.metrics
    }
}

/// Samples every held-out prompt under the present weights; `None` without held-out prompts or rewards, or when the
/// run was asked to stop.
///
/// # Errors
/// [`TrainError`].
pub fn evaluate(trainer: &mut Trainer) -> Result<Option<Evaluation>, TrainError> {
    if trainer.held_out.is_empty() || trainer.spec().rewards.functions.is_empty() {
        return Ok(None);
    }
    let mut clock = PhaseClock::start();
    trainer.sync_weights()?;
    let prompts: Vec<Arc<Prompt>> = trainer.held_out.items().to_vec();
    let held_out = trainer.spec().rollout.held_out.clone();
    let sampling = SamplingParams {
        temperature: held_out.temperature,
        top_p: held_out.top_p,
        top_k: None,
        min_p: 0.0,
        ..training_sampling(trainer)
    };
    let num_samples = held_out.samples_per_prompt;
    let how = Sampling { phase: Phase::Evaluation, stream: SeedStream::Evaluation, sampling, num_samples };
    // The same seeds at every evaluation, so that two evaluations differ by the weights alone.
    let sampled = sample_groups(trainer, &prompts, &how, &[], &mut clock)?;
    trainer.engine.sleep();
    let Some(groups) = sampled else { return Ok(None) };
    trainer.watch.completions(trainer.progress.step, true, &groups);
    let mut metrics = summarize(&groups, num_samples);
    metrics.insert("timing_s/testing".into(), clock.total_seconds());
    Ok(metrics.get("val-core/reward/mean").copied().map(|reward| Evaluation { reward, metrics }))
}

/// Means over prompts; samples whose reward can not be trusted count for nothing.
fn summarize(groups: &[RolloutGroup], num_samples: u32) -> Metrics {
    let mut metrics = Metrics::new();
    let mut by_source: BTreeMap<&str, Vec<Vec<f64>>> = BTreeMap::new();
    for group in groups {
        let trusted = group.rollouts.iter().filter(|r| r.reward.status == RewardStatus::Ok);
        let scores: Vec<f64> = trusted.map(|rollout| rollout.reward.score).collect();
        if !scores.is_empty() {
            by_source.entry(&group.prompt.data_source).or_default().push(scores);
        }
    }
    let all: Vec<f64> = by_source.values().flatten().flatten().copied().collect();
    if !all.is_empty() {
        metrics.insert("val-core/reward/mean".into(), mean(&all));
    }
    for (source, prompts) in by_source {
        let means: Vec<f64> = prompts.iter().map(|scores| mean(scores)).collect();
        metrics.insert(format!("val-core/{source}/reward/mean@{num_samples}"), mean(&means));
        if num_samples > 1 {
            let best = |scores: &Vec<f64>| scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let bests: Vec<f64> = prompts.iter().map(best).collect();
            metrics.insert(format!("val-core/{source}/reward/best@{num_samples}/mean"), mean(&bests));
        }
    }
    let lens: Vec<f64> = groups
        .iter()
        .flat_map(|group| &group.rollouts)
        .map(|rollout| rollout.completion.tokens.len() as f64)
        .collect();
    if !lens.is_empty() {
        metrics.insert("val-aux/response_length/mean".into(), mean(&lens));
    }
    metrics
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
