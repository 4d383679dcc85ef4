//! The end of a run: the exported model, the verdict, the report.

use std::time::Duration;

use rlt_api::spec::ExportDtype;
use serde::Serialize;
use tch::Kind;

use crate::error::TrainError;
use crate::model::{BaseModel, ExportOptions};
use crate::report;
use crate::stop::{Outcome, StopReason};
use crate::tracking::console::Phase;
use crate::trainer::Trainer;

/// `result.json`: what a run came to, for people and for programs.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    name: &'a str,
    outcome: &'static str,
    step: u64,
    num_steps: u64,
    held_out_reward_before: Option<f64>,
    held_out_reward_after: Option<f64>,
    elapsed_seconds: f64,
    num_tokens: u64,
}

/// On the leading rank: exports the model where the run is complete, writes the verdict, closes the trackers, draws the report.
///
/// # Errors
/// [`TrainError`]; the checkpoint of the last step is safe already.
pub fn finish(trainer: &mut Trainer, outcome: Outcome) -> Result<(), TrainError> {
    let exports = outcome == Outcome::Complete && trainer.spec().checkpoint.export.enabled;
    if exports {
        trainer.actor.hold()?;
    }
    if !trainer.ranks.is_leader() {
        return Ok(());
    }
    if exports {
        trainer.watch.begin_phase(Phase::Saving, 0);
        tracing::info_span!(target: rlt_traces::TARGET, "export").in_scope(|| export(trainer))?;
    }
    wait_for_copy(trainer, outcome)?;
    write_result(trainer, outcome)?;
    trainer.watch.message(&summary(trainer, outcome));
    trainer.watch.finish();
    report::render(trainer.folder.root())?;
    Ok(())
}

/// A complete run is complete once its last checkpoint is where it was asked for. One that was asked to stop has half of its
/// time left for that, and what is missing is copied when it goes on.
fn wait_for_copy(trainer: &Trainer, outcome: Outcome) -> Result<(), TrainError> {
    let grace = u64::from(trainer.spec().run_policy.termination_grace_period_seconds);
    match outcome {
        Outcome::Complete => Ok(trainer.checkpoints.finish_copies(Duration::from_secs(grace))?),
        Outcome::Stopped(_) => {
            if let Err(error) = trainer.checkpoints.finish_copies(Duration::from_secs(grace) / 2) {
                trainer.watch.message(&error.to_string());
            }
            Ok(())
        }
    }
}

fn export(trainer: &Trainer) -> Result<(), TrainError> {
    let spec = &trainer.spec().checkpoint.export;
    let dtype = match spec.dtype {
        ExportDtype::Auto => trainer.source_kind,
        ExportDtype::Fp32 => Kind::Float,
        ExportDtype::Bf16 => Kind::BFloat16,
    };
    let (folder, decoder) = (trainer.folder.export(), &trainer.actor.decoder);
    decoder.export(&folder, &ExportOptions { merge_lora: spec.merge_lora, dtype })?;
    if decoder.lora().is_some() {
        // What is below the adapter of a new model is nowhere but here, and only where it is not merged.
        let exported = || BaseModel { name_or_path: folder.display().to_string(), revision: None };
        let base = trainer.base_model.clone().or_else(|| (!spec.merge_lora).then(exported));
        decoder.save_adapter(&folder.join("adapter"), base.as_ref())?;
    }
    trainer.tokenizer.save(&folder)?;
    Ok(())
}

fn write_result(trainer: &Trainer, outcome: Outcome) -> Result<(), TrainError> {
    let result = RunResult {
        name: trainer.job.name(),
        outcome: match outcome {
            Outcome::Complete => "complete",
            Outcome::Stopped(StopReason::Signal) => "stopped by a signal",
            Outcome::Stopped(StopReason::Deadline) => "stopped by the deadline",
        },
        step: trainer.progress.step,
        num_steps: trainer.num_steps,
        held_out_reward_before: trainer.progress.first_evaluation,
        held_out_reward_after: trainer.progress.last_evaluation,
        elapsed_seconds: trainer.elapsed_seconds(),
        num_tokens: trainer.progress.num_tokens,
    };
    let result = serde_json::to_value(result).map_err(TrainError::State)?;
    Ok(trainer.folder.write_json("result.json", &result)?)
}

fn summary(trainer: &Trainer, outcome: Outcome) -> String {
    let folder = trainer.folder.root().display();
    let step = trainer.progress.step;
    match (outcome, trainer.progress.first_evaluation, trainer.progress.last_evaluation) {
        (Outcome::Stopped(_), _, _) => {
            format!("stopped after step {step} of {} with a checkpoint in {folder}", trainer.num_steps)
        }
        (Outcome::Complete, Some(before), Some(after)) => {
            format!("held-out reward {before:.3} -> {after:.3} in {step} steps; everything is in {folder}")
        }
        (Outcome::Complete, _, _) => format!("{step} steps are done; everything is in {folder}"),
    }
}
