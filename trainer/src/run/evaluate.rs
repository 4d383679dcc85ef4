//! Held-out prompts: sampled, judged, summed up. Nothing is learned from them.

use std::time::Instant;

use rlt_core::held_out::held_out_metrics;
use rlt_core::metrics::Metrics;

use crate::data::Data;
use crate::observe::tracking::Stage;
use crate::roles::step_context::StepPosition;
use crate::roles::{Roles, StepError};
use crate::run::Run;
use crate::run::error::TrainError;

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
pub fn evaluate(run: &Run, roles: &mut Roles, data: &Data) -> Result<Option<Evaluation>, TrainError> {
    if data.held_out().is_empty() || run.spec().rewards.functions.is_empty() {
        return Ok(None);
    }
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "testing").entered();
    let started = Instant::now();
    let step = run.progress.step;
    run.context.set_position(StepPosition { stage: Stage::Training, num_done: step });
    let sampled = roles.rollout.sample_held_out(&roles.actor, data.held_out())?;
    let judged = roles.rewards.judge_unrecorded(sampled);
    // The next step samples under the same weights: they stay packed.
    roles.rollout.free_cache();
    let groups = match judged {
        Err(StepError::Interrupted) => return Ok(None),
        judged => judged?.0,
    };
    let watch = run.context.watch();
    watch.completions(watch.completion_records(step, true, &groups));
    let mut metrics = held_out_metrics(&groups, run.spec().rollout.held_out.samples_per_prompt);
    metrics.insert("timing_s/testing".into(), started.elapsed().as_secs_f64());
    Ok(metrics.get("val-core/reward/mean").copied().map(|reward| Evaluation { reward, metrics }))
}
