//! The training loop: cold start, steps, evaluation, checkpoints, and the end.
//!
//! ```text
//! resume? -> cold start -> evaluate -> [ step -> log -> evaluate? -> checkpoint? ]* -> export -> report
//! ```
//! Steps are implemented by recipes ([`crate::recipes`]); the checkpointed state is in [`crate::run::state`].

use rlt_core::metrics::Metrics;
use rlt_data::Pipeline;
use rlt_parallel::{RankError, Ranks};
use rlt_torch::collectives::Traffic;

use crate::observe::phases::gib;
use crate::observe::stop::{Outcome, StopReason};
use crate::observe::tracking::{RunEnd, Stage};
use crate::roles::step_context::StepPosition;
use crate::roles::{Roles, StepError};
use crate::run::checkpoint_writer::Wait;
use crate::run::error::TrainError;
use crate::run::evaluate::{Evaluation, evaluate};
use crate::run::recipe::Recipe;
use crate::run::setup::datasets::{first_step_warning, repeat_metrics, row_metrics, streamed_warnings};
use crate::run::{Run, StepReward};
use crate::run::{finish, out_of_memory, state};

/// Trains from the state in the run folder to the last step.
///
/// # Errors
/// [`TrainError`]; completed steps are in the run folder.
pub fn train(run: &mut Run, roles: &mut Roles, data: &mut Pipeline) -> Result<Outcome, TrainError> {
    state::resume(run, roles, data)?;
    let outcome = out_of_memory::explained(|| run_to_the_end(run, roles, data));
    if let Err(error) = &outcome {
        state::keep_save(run, error);
        run.context.watch().message(&format!("the run failed: {error}"));
        run.context.watch_mut().finish(RunEnd::Failed);
    }
    let outcome = outcome?;
    run.data_warnings.extend(streamed_warnings(data.streamed_counts()));
    finish::finish(run, roles, outcome)?;
    Ok(outcome)
}

fn run_to_the_end(run: &mut Run, roles: &mut Roles, data: &mut Pipeline) -> Result<Outcome, TrainError> {
    let stopped = run_steps(run, roles, data)?;
    // The last evaluation keeps packed weights for a next step, which does not exist.
    roles.rollout.sleep();
    state::save(run, roles, data)?;
    Ok(stopped.map_or(Outcome::Complete, Outcome::Stopped))
}

/// Runs the cold start and the training; returns the reason if the run was asked to stop.
fn run_steps(
    run: &mut Run,
    roles: &mut Roles,
    data: &mut Pipeline,
) -> Result<Option<StopReason>, TrainError> {
    if let Some(reason) = cold_start(run, roles, data)? {
        return Ok(Some(reason));
    }
    run.context.watch().begin_stage(Stage::Training, run.progress.step, run.num_steps);
    if run.progress.step == 0 && run.progress.first_evaluation.is_none() {
        prepare_first_step(run, roles, data)?;
    }
    roles.critic.begin(&roles.actor)?;
    while run.progress.step < run.num_steps {
        let stopped = match run.stop_reason()? {
            Some(reason) => Some(reason),
            None => train_one_step(run, roles, data)?,
        };
        if stopped.is_some() {
            return Ok(stopped);
        }
    }
    Ok(None)
}

/// Trains on demonstrations before the first step, from the resumed position; returns the reason if the run
/// was asked to stop.
fn cold_start(
    run: &mut Run,
    roles: &mut Roles,
    data: &mut Pipeline,
) -> Result<Option<StopReason>, TrainError> {
    let Some(spec) = &run.spec().algorithm.cold_start else { return Ok(None) };
    let num_steps = u64::from(spec.steps);
    if run.progress.step > 0 || run.progress.cold_start_steps >= num_steps {
        return Ok(None);
    }
    run.context.watch().begin_stage(Stage::ColdStart, run.progress.cold_start_steps, num_steps);
    while run.progress.cold_start_steps < num_steps {
        if let Some(reason) = run.stop_reason()? {
            return Ok(Some(reason));
        }
        let step = run.progress.cold_start_steps + 1;
        let _followed = tracing::info_span!(target: rlt_traces::TARGET, "cold start step", step).entered();
        let metrics = match run_step(run, roles, data, Stage::ColdStart)? {
            StepEnd::Complete(metrics) => metrics,
            StepEnd::Dropped(reason) => return Ok(Some(reason)),
        };
        run.progress.cold_start_steps = step;
        run.context.watch().end_step(Stage::ColdStart, step, metrics);
        run.check_divergence()?;
    }
    // Moments of the supervised loss would steer the first updates by the RL loss.
    roles.actor.reset_optimizer()?;
    Ok(None)
}

/// Prepares the first step after the cold start: the reference, the first evaluation, and a checkpoint of
/// both.
fn prepare_first_step(run: &mut Run, roles: &mut Roles, data: &Pipeline) -> Result<(), TrainError> {
    roles.reference.freeze(&roles.actor)?;
    if run.spec().training.evaluate_before {
        let evaluation = evaluate(run, roles, data)?;
        run.progress.first_evaluation = evaluation.as_ref().and_then(|e| e.reward);
        log(run, data, evaluation.map(Evaluation::into_metrics).unwrap_or_default());
    }
    if run.progress.cold_start_steps > 0 {
        state::save(run, roles, data)?;
    }
    Ok(())
}

/// Runs one step, its evaluation and its checkpoint; returns the reason if the step was interrupted.
fn train_one_step(
    run: &mut Run,
    roles: &mut Roles,
    data: &mut Pipeline,
) -> Result<Option<StopReason>, TrainError> {
    let step = run.progress.step + 1;
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "step", step).entered();
    let mut metrics = match run_step(run, roles, data, Stage::Training)? {
        StepEnd::Complete(metrics) => metrics,
        StepEnd::Dropped(reason) => return Ok(Some(reason)),
    };
    run.progress.step = step;
    let is_evaluated = is_due(step, run.spec().training.evaluate_every, run.num_steps);
    let mut is_best = false;
    if let Some(evaluation) = if is_evaluated { evaluate(run, roles, data)? } else { None } {
        run.progress.take_evaluation(evaluation.reward);
        if let (Some(reward), true) = (evaluation.reward, run.spec().checkpoint.keep_best) {
            is_best = run.saver.borrow_mut().best.take(StepReward { step, reward });
        }
        metrics.extend(evaluation.into_metrics());
    }
    run.saver.borrow_mut().commit_if_done(Wait::None)?;
    // The step is logged before its checkpoint, so that a kill at any moment leaves no checkpoint whose steps
    // are missing from the logs.
    log(run, data, metrics);
    // The last step is followed by a checkpoint in any case, after the loop.
    let is_saved = is_best || is_due(step, run.spec().checkpoint.every_steps, u64::MAX);
    if step < run.num_steps && is_saved {
        state::save_beside(run, roles, data)?;
    }
    run.check_divergence()?;
    Ok(None)
}

/// Outcome of a step.
#[derive(Debug)]
enum StepEnd {
    /// The weights were updated; with the metrics of the step.
    Complete(Metrics),
    /// The run was asked to stop before the weights were changed, so the step does not count.
    Dropped(StopReason),
}

/// Runs one step of the stage's recipe. An interrupted step returns its prompts to the data, so that a
/// resumed run repeats the same step.
fn run_step(
    run: &mut Run,
    roles: &mut Roles,
    data: &mut Pipeline,
    stage: Stage,
) -> Result<StepEnd, TrainError> {
    let num_done = match stage {
        Stage::ColdStart => run.progress.cold_start_steps,
        Stage::Training => run.progress.step,
    };
    let position = data.position();
    data.begin_step();
    let exchanged = run.ranks.traffic();
    run.context.begin_step(StepPosition { stage, num_done });
    let done = recipe(run, stage).step(roles, data);
    let is_interrupted = matches!(done, Err(StepError::Interrupted));
    if !is_interrupted {
        done?;
    }
    run.context.end_sampling().map_err(StepError::from)?;
    if is_interrupted {
        data.resume(&position)?;
        return Ok(StepEnd::Dropped(run.stop_reason()?.unwrap_or(StopReason::Signal)));
    }
    if stage == Stage::Training {
        roles.reference.sync(&roles.actor, num_done + 1)?;
    }
    let report = run.context.end_step();
    run.progress.num_tokens += report.num_tokens as u64;
    run.count_skipped(report.num_skipped);
    run.context.watch().completions(report.completions);
    let mut metrics = report.metrics;
    metrics.extend(communication_metrics(&run.ranks, exchanged)?);
    metrics.extend(repeat_metrics(data.step_draws()));
    if num_done == 0 {
        run.warn_of_repeats(first_step_warning(stage, data.step_draws()));
    }
    Ok(StepEnd::Complete(metrics))
}

/// Returns `perf/communication_gb`: the number of bytes that the busiest rank has sent to other ranks since
/// `before`. A single rank reports nothing. Collective.
///
/// # Errors
/// [`RankError`] when a rank is lost.
fn communication_metrics(ranks: &Ranks, before: Traffic) -> Result<Metrics, RankError> {
    if ranks.size() == 1 {
        return Ok(Metrics::new());
    }
    let most = ranks.all_reduce_max(ranks.traffic().since(before).sent as i64)?;
    Ok(Metrics::from([("perf/communication_gb".to_owned(), gib(most as u64))]))
}

fn recipe(run: &mut Run, stage: Stage) -> &mut dyn Recipe {
    let recipes = &mut run.recipes;
    match (stage, &mut recipes.cold_start) {
        (Stage::ColdStart, Some(recipe)) => recipe.as_mut(),
        (Stage::ColdStart, None) | (Stage::Training, _) => recipes.training.as_mut(),
    }
}

fn is_due(step: u64, every_steps: u64, last_step: u64) -> bool {
    step == last_step || (every_steps > 0 && step.is_multiple_of(every_steps))
}

fn log(run: &Run, data: &Pipeline, mut metrics: Metrics) {
    let mut saver = run.saver.borrow_mut();
    if let Some(waited) = saver.take_time() {
        metrics.insert("timing_s/save_checkpoint".into(), waited.as_secs_f64());
    }
    if let Some(step) = saver.checkpoints.copied_step() {
        metrics.insert("checkpoint/copied_step".into(), step as f64);
    }
    metrics.insert("training/global_step".into(), run.progress.step as f64);
    metrics.insert("training/epoch".into(), data.epoch() as f64);
    metrics.extend(run.data_metrics.clone());
    metrics.extend(row_metrics(data.streamed_counts()));
    run.context.watch().end_step(Stage::Training, run.progress.step, metrics);
}

#[cfg(test)]
mod tests;
