//! The loop around the step: cold start, steps, evaluation, checkpoints, and the end, however it comes.
//!
//! ```text
//! resume? -> cold start -> evaluate -> [ step -> log -> evaluate? -> checkpoint? ]* -> export -> report
//! ```
//! What a step does is in [`crate::step`]; what is kept across a restart in [`crate::state`]. Nothing here
//! computes.

use rlt_core::metrics::Metrics;

use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::stop::{Outcome, StopReason};
use crate::tracking::Stage;
use crate::trainer::Trainer;
use crate::{finish, out_of_memory, state, step, supervised};

/// Trains from wherever the run folder stands to the end.
///
/// # Errors
/// [`TrainError`]; what was complete before it is in the run folder.
pub fn train(trainer: &mut Trainer) -> Result<Outcome, TrainError> {
    state::resume(trainer)?;
    let outcome = out_of_memory::explained(|| run_to_the_end(trainer));
    if let Err(error) = &outcome {
        state::keep_save(trainer, error);
        trainer.watch.message(&format!("the run failed: {error}"));
        trainer.watch.finish();
    }
    let outcome = outcome?;
    finish::finish(trainer, outcome)?;
    Ok(outcome)
}

fn run_to_the_end(trainer: &mut Trainer) -> Result<Outcome, TrainError> {
    if let Some(reason) = supervised::cold_start(trainer)? {
        state::save(trainer)?;
        return Ok(Outcome::Stopped(reason));
    }
    trainer.watch.begin_stage(Stage::Training, trainer.progress.step, trainer.num_steps);
    if trainer.progress.step == 0 && trainer.progress.first_evaluation.is_none() {
        prepare_first_step(trainer)?;
    }
    trainer.begin_critic()?;
    while trainer.progress.step < trainer.num_steps {
        let stopped = match trainer.stop_reason()? {
            Some(reason) => Some(reason),
            None => train_one_step(trainer)?,
        };
        if let Some(reason) = stopped {
            state::save(trainer)?;
            return Ok(Outcome::Stopped(reason));
        }
    }
    state::save(trainer)?;
    Ok(Outcome::Complete)
}

/// What comes between cold start and the first step: the reference, the first evaluation, a checkpoint of
/// both.
fn prepare_first_step(trainer: &mut Trainer) -> Result<(), TrainError> {
    trainer.freeze_reference()?;
    if trainer.spec().training.evaluate_before {
        let evaluation = evaluate(trainer)?;
        trainer.progress.first_evaluation = evaluation.as_ref().map(|e| e.reward);
        log(trainer, evaluation.map(Evaluation::into_metrics).unwrap_or_default());
    }
    if trainer.progress.cold_start_steps > 0 {
        state::save(trainer)?;
    }
    Ok(())
}

/// One step with all that follows it; the reason if it was dropped half way.
fn train_one_step(trainer: &mut Trainer) -> Result<Option<StopReason>, TrainError> {
    let step = trainer.progress.step + 1;
    let _followed = tracing::info_span!(target: rlt_traces::TARGET, "step", step).entered();
    let mut metrics = match next_step(trainer)? {
        step::StepEnd::Complete(metrics) => metrics,
        step::StepEnd::Dropped(reason) => return Ok(Some(reason)),
    };
    trainer.progress.step += 1;
    let is_evaluated =
        is_due(trainer.progress.step, trainer.spec().training.evaluate_every, trainer.num_steps);
    if let Some(evaluation) = if is_evaluated { evaluate(trainer)? } else { None } {
        trainer.progress.last_evaluation = Some(evaluation.reward);
        metrics.extend(evaluation.into_metrics());
    }
    state::look_after_save(trainer)?;
    let every_steps = trainer.spec().checkpoint.every_steps;
    // Logged first: whenever a kill comes, no step of a checkpoint is missing from the logs.
    log(trainer, metrics);
    // The last step is followed by a checkpoint in any case, after the loop.
    if trainer.progress.step < trainer.num_steps && is_due(trainer.progress.step, every_steps, u64::MAX) {
        state::save_beside(trainer)?;
    }
    trainer.check_divergence()?;
    Ok(None)
}

fn next_step(trainer: &mut Trainer) -> Result<step::StepEnd, TrainError> {
    if trainer.spec().algorithm.policy_gradient.is_some() {
        return step::step(trainer);
    }
    let (batch_size, position) = (trainer.spec().training.prompts_per_step, trainer.progress.step);
    let learning_rate = trainer.schedule.at(position);
    let metrics = supervised::supervised_step(trainer, batch_size as usize, learning_rate, &[1, position])?;
    Ok(step::StepEnd::Complete(metrics))
}

fn is_due(step: u64, every_steps: u64, last_step: u64) -> bool {
    step == last_step || (every_steps > 0 && step.is_multiple_of(every_steps))
}

fn log(trainer: &mut Trainer, mut metrics: Metrics) {
    if let Some(seconds) = trainer.seconds_saving.take() {
        metrics.insert("timing_s/save_checkpoint".into(), seconds);
    }
    if let Some(step) = trainer.checkpoints.copied_step() {
        metrics.insert("checkpoint/copied_step".into(), step as f64);
    }
    metrics.insert("training/global_step".into(), trainer.progress.step as f64);
    metrics.insert("training/epoch".into(), trainer.epoch() as f64);
    trainer.watch.end_step(Stage::Training, trainer.progress.step, metrics);
}

#[cfg(test)]
mod tests;
