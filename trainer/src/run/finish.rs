//! The end of a run: exports the model, writes the result, and renders the report.

use std::path::Path;
use std::time::Duration;

use rlt_api::resolved::TrainingLength;
use rlt_api::spec::{ExportDtype, ExportSpec};
use rlt_decoder::{AdapterExport, BaseModel, Decoder, Export, ExportOptions};
use rlt_parallel::{FsdpUnit, WeightDtype};
use serde::Serialize;
use tch::Kind;

use crate::observe::report;
use crate::observe::stop::{Outcome, StopReason};
use crate::observe::tracking::RunEnd;
use crate::observe::tracking::console::Phase;
use crate::roles::Roles;
use crate::run::error::TrainError;
use crate::run::{ModelOrigin, Run};

/// Name of the adapter's folder within an export.
const ADAPTER: &str = "adapter";

/// Content of `result.json`: the result of a run, for users and programs.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    name: &'a str,
    outcome: &'static str,
    step: u64,
    num_steps: u64,
    /// Number of passes over the data; `None` if the manifest gives steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<u32>,
    held_out_reward_before: Option<f64>,
    held_out_reward_after: Option<f64>,
    elapsed_seconds: f64,
    num_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    data_warnings: &'a Vec<String>,
}

/// Exports the model if the run is complete. Then the leader writes the result, closes the trackers and
/// renders the report, unless a signal has stopped the run.
///
/// # Errors
/// [`TrainError`]; the checkpoint of the last step is already committed.
pub fn finish(run: &Run, roles: &Roles, outcome: Outcome) -> Result<(), TrainError> {
    if outcome == Outcome::Complete && run.spec().checkpoint.export.enabled {
        run.context.watch().begin_phase(Phase::Saving, 0);
        tracing::info_span!(target: rlt_traces::TARGET, "export").in_scope(|| export(run, roles))?;
    }
    if !run.ranks.is_leader() {
        return Ok(());
    }
    wait_for_copy(run, outcome)?;
    write_result(run, outcome)?;
    run.context.watch().message(&summary(run, outcome));
    for warning in run.warning.iter().chain(&run.data_warnings) {
        run.context.watch().message(&format!("this run {warning}"));
    }
    run.context.watch_mut().finish(match outcome {
        Outcome::Complete => RunEnd::Complete,
        Outcome::Stopped(_) => RunEnd::Stopped,
    });
    // A process that was asked to stop is soon killed, and the time of the page grows with the logs.
    if outcome == Outcome::Stopped(StopReason::Signal) {
        return Ok(());
    }
    report::render_at_end(run.folder.root());
    Ok(())
}

/// Waits until the last checkpoint is copied to `checkpoint.uri`, without which a run is not complete. A run
/// that was asked to stop spends half of its remaining time on this; a missing copy is made when it resumes.
fn wait_for_copy(run: &Run, outcome: Outcome) -> Result<(), TrainError> {
    let grace = u64::from(run.spec().run_policy.termination_grace_period_seconds);
    match outcome {
        Outcome::Complete => Ok(run.saver.borrow().checkpoints.finish_copies(Duration::from_secs(grace))?),
        Outcome::Stopped(_) => {
            if let Err(error) = run.saver.borrow().checkpoints.finish_copies(Duration::from_secs(grace) / 2) {
                run.context.watch().message(&error.to_string());
            }
            Ok(())
        }
    }
}

/// Writes the model unit by unit on the leader; with FSDP all ranks gather it. Collective.
fn export(run: &Run, roles: &Roles) -> Result<(), TrainError> {
    let (decoder, folder) = (roles.actor.decoder(), run.folder.export());
    let (spec, mut files) = (&run.spec().checkpoint.export, None);
    if run.ranks.is_leader() {
        files = Some(ExportedFiles::begin(decoder, &folder, spec, &run.source)?);
    }
    roles.actor.units().visit(WeightDtype::Master, |unit| match &mut files {
        Some(files) => files.write(unit),
        None => Ok(()),
    })?;
    files.map_or(Ok(()), ExportedFiles::finish)?;
    if run.ranks.is_leader() {
        let is_alone = is_adapter_alone(decoder, spec, &run.source);
        roles.rollout.tokenizer.save(&if is_alone { folder.join(ADAPTER) } else { folder })?;
    }
    Ok(())
}

/// Returns the dtype of exported weights; `source` is the dtype of the model's folder.
pub(crate) fn export_kind(dtype: ExportDtype, source: Kind) -> Kind {
    match dtype {
        ExportDtype::Auto => source,
        ExportDtype::Fp32 => Kind::Float,
        ExportDtype::Bf16 => Kind::BFloat16,
    }
}

/// Whether only the adapter is exported: it is not merged, and its base is available elsewhere.
fn is_adapter_alone(decoder: &Decoder, spec: &ExportSpec, source: &ModelOrigin) -> bool {
    decoder.lora().is_some() && !spec.merge_lora && source.base.is_some()
}

/// Files of weights in an export. An unmerged adapter is exported alone, as PEFT does, unless it belongs to a
/// new model, whose base exists nowhere else.
struct ExportedFiles<'a> {
    model: Option<Export<'a>>,
    adapter: Option<AdapterExport<'a>>,
}

impl<'a> ExportedFiles<'a> {
    fn begin(
        decoder: &'a Decoder,
        folder: &Path,
        spec: &ExportSpec,
        source: &ModelOrigin,
    ) -> Result<Self, TrainError> {
        let dtype = export_kind(spec.dtype, source.kind);
        let options = ExportOptions { merge_lora: spec.merge_lora, dtype };
        let begin = || Export::begin(decoder, folder, &options);
        if decoder.lora().is_none() {
            return Ok(Self { model: Some(begin()?), adapter: None });
        }
        let is_alone = is_adapter_alone(decoder, spec, source);
        let model = if is_alone { None } else { Some(begin()?) };
        // The base of a new model's adapter exists only here, and only if it is not merged.
        let exported = || BaseModel { name_or_path: folder.display().to_string(), revision: None };
        let base = source.base.clone().or_else(|| (!spec.merge_lora).then(exported));
        let adapter = AdapterExport::begin(decoder, &folder.join(ADAPTER), base.as_ref())?;
        let objections = decoder.not_served_by_vllm();
        if !objections.is_empty() {
            let why = objections.join("; ");
            tracing::warn!("vLLM cannot serve export/adapter without merging it: {why}");
        }
        Ok(Self { model, adapter: Some(adapter) })
    }

    fn write(&mut self, unit: FsdpUnit) -> Result<(), TrainError> {
        self.model.as_mut().map_or(Ok(()), |model| model.write(unit.layer_idx()))?;
        self.adapter.as_mut().map_or(Ok(()), |adapter| adapter.write(unit.layer_idx()))?;
        Ok(())
    }

    fn finish(self) -> Result<(), TrainError> {
        self.model.map_or(Ok(()), Export::finish)?;
        self.adapter.map_or(Ok(()), AdapterExport::finish)?;
        Ok(())
    }
}

fn write_result(run: &Run, outcome: Outcome) -> Result<(), TrainError> {
    let result = RunResult {
        name: run.job.name(),
        outcome: match outcome {
            Outcome::Complete => "complete",
            Outcome::Stopped(StopReason::Signal) => "stopped by a signal",
            Outcome::Stopped(StopReason::Deadline) => "stopped by the deadline",
        },
        step: run.progress.step,
        num_steps: run.num_steps,
        epochs: match run.spec().training.length {
            TrainingLength::Steps(_) => None,
            TrainingLength::Epochs(epochs) => Some(epochs),
        },
        held_out_reward_before: run.progress.first_evaluation,
        held_out_reward_after: run.progress.last_evaluation,
        elapsed_seconds: run.elapsed_seconds(),
        num_tokens: run.progress.num_tokens,
        warning: run.warning.as_deref(),
        data_warnings: &run.data_warnings,
    };
    let result = serde_json::to_value(result).map_err(TrainError::State)?;
    Ok(run.folder.write_json("result.json", &result)?)
}

fn summary(run: &Run, outcome: Outcome) -> String {
    let folder = run.folder.root().display();
    let step = run.progress.step;
    match (outcome, run.progress.first_evaluation, run.progress.last_evaluation) {
        (Outcome::Stopped(_), _, _) => {
            format!("stopped after step {step} of {} with a checkpoint in {folder}", run.num_steps)
        }
        (Outcome::Complete, Some(before), Some(after)) => {
            format!("held-out reward {before:.3} -> {after:.3} in {step} steps; everything is in {folder}")
        }
        (Outcome::Complete, _, _) => format!("{step} steps are done; everything is in {folder}"),
    }
}
