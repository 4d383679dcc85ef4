//! Evaluation on held-out rows, on which the model is not trained. The run samples and scores prompts; the
//! recipe measures rows of other kinds.

use std::time::Instant;

use rlt_core::held_out::held_out_metrics;
use rlt_core::metrics::Metrics;
use rlt_data::Pipeline;

use crate::observe::tracking::Stage;
use crate::roles::step_context::StepPosition;
use crate::roles::{Roles, StepError};
use crate::run::Run;
use crate::run::error::TrainError;

/// Metrics of the held-out rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean score over all held-out prompts and samples; `None` without rewards.
    pub reward: Option<f64>,
    metrics: Metrics,
}

impl Evaluation {
    /// Returns the metrics of [`held_out_metrics`], those of the recipe, and `timing_s/testing`.
    pub fn into_metrics(self) -> Metrics {
        self.metrics
    }
}

/// Measures every held-out row under the current weights. `None` without held-out rows, or when the run was
/// asked to stop.
///
/// # Errors
/// [`TrainError`].
pub fn evaluate(run: &Run, roles: &mut Roles, data: &Pipeline) -> Result<Option<Evaluation>, TrainError> {
    let judges = !data.held_out().is_empty() && !run.spec().rewards.functions.is_empty();
    if !judges && data.held_out_preferences().is_empty() {
        return Ok(None);
    }
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "testing").entered();
    let started = Instant::now();
    let step = run.progress.step;
    run.context.set_position(StepPosition { stage: Stage::Training, num_done: step });
    let mut metrics = Metrics::new();
    if judges {
        match judged_metrics(run, roles, data)? {
            Some(judged) => metrics = judged,
            None => return Ok(None),
        }
    }
    let measured = run.recipes.training.evaluate(roles, data)?;
    metrics.extend(measured.into_iter().map(|(name, value)| (format!("val-core/{name}"), value)));
    metrics.insert("timing_s/testing".into(), started.elapsed().as_secs_f64());
    let reward = metrics.get("val-core/reward/mean").copied();
    Ok((metrics.len() > 1).then_some(Evaluation { reward, metrics }))
}

/// Returns the metrics of completions sampled for the held-out prompts; `None` when the run was asked to
/// stop.
fn judged_metrics(run: &Run, roles: &mut Roles, data: &Pipeline) -> Result<Option<Metrics>, TrainError> {
    let sampled = roles.rollout.sample_held_out(&roles.actor, data.held_out())?;
    let judged = roles.rewards.judge_unrecorded(sampled);
    // The next step samples with the same weights, so the packed weights are kept.
    roles.rollout.free_cache();
    let groups = match judged {
        Err(StepError::Interrupted) => return Ok(None),
        judged => judged?.0,
    };
    let watch = run.context.watch();
    watch.completions(watch.completion_records(run.progress.step, true, &groups));
    Ok(Some(held_out_metrics(&groups, run.spec().rollout.held_out.samples_per_prompt)))
}
