//! `rlt-trainer export`: writes a checkpoint of a run as a folder that `transformers` or PEFT loads, and on
//! request pushes it to the Hugging Face hub. The run may be active; it is not changed. A checkpoint records
//! the offset of each shard in its tensor, so any number of ranks may have written it.

mod choose;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use rlt_api::ExitCode;
use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::ExportDtype;
use rlt_decoder::{Decoder, ExportOptions};
use rlt_hub::push;
use rlt_storage::checkpoint::Checkpoint;
use rlt_storage::run_folder::{EXPORTS, RunFolder};

pub use self::choose::Step;
use crate::commands::worker::read_manifest_of_run;
use crate::run::error::TrainError;
use crate::run::finish::export_kind;
use crate::run::setup::hub_models::base_model;
use crate::run::setup::{load_tokenizer, model, source_kind};
use crate::run::state;

/// Exports a checkpoint of a run.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// Run folder, or the name of a run below runs/
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Number of complete steps of the checkpoint, or best for the highest held-out reward; by default the
    /// newest
    #[arg(long, value_name = "N|best")]
    pub step: Option<Step>,
    /// Folder to write to; by default exports/step-N in the run folder
    #[arg(long, short = 'd', value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Content of the export
    #[arg(long, value_enum, default_value_t = Layout::HuggingFace)]
    pub layout: Layout,
    /// Dtype of stored weights; by default the job's checkpoint.export.dtype
    #[arg(long, value_enum)]
    pub dtype: Option<StoredDtype>,
    /// Model repository of the hub to which the files are committed; if it is missing, a private one is
    /// created
    #[arg(long, value_name = "hub:OWNER/NAME")]
    pub push_to: Option<HubTarget>,
}

/// Content of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// Full model with its adapter merged, as transformers loads it.
    HuggingFace,
    /// Adapter alone, as PEFT loads it; only of jobs with LoRA.
    Peft,
}

/// Dtype of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredDtype {
    /// Dtype of the model's folder.
    Auto,
    /// 32-bit floating point.
    Fp32,
    /// 16-bit floating point (bfloat16).
    Bf16,
}

/// A model repository of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTarget(push::Repository);

impl FromStr for HubTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let repository = text.strip_prefix("hub:").and_then(push::Repository::new);
        repository.map(Self).ok_or_else(|| "expected hub:OWNER/NAME".to_owned())
    }
}

/// A checkpoint could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The run's manifest, model or checkpoint cannot be used, or the files cannot be written.
    #[error(transparent)]
    Run(#[from] Box<TrainError>),
    /// The path is neither a run folder nor the name of a run.
    #[error("expected a run folder with a manifest.yaml, got {path}", path = .0.display())]
    NoRun(PathBuf),
    /// The run has no checkpoint.
    #[error("{path} has no checkpoint: the first one is saved after checkpoint.everySteps steps", path = .0.display())]
    NoCheckpoint(PathBuf),
    /// The requested step has no checkpoint.
    #[error(
        "--step: expected a step with a checkpoint, {}, got {step}: checkpoint.keep says how many are kept",
        choose::listed(there)
    )]
    NoStep {
        /// Step that was requested.
        step: u64,
        /// Steps that have a checkpoint.
        there: Vec<u64>,
    },
    /// No checkpoint is of a step with an evaluation.
    #[error(
        "--step best: no checkpoint ({}) is of a step with an evaluation on held-out prompts: checkpoint.keepBest \
         saves and keeps one",
        choose::listed(there)
    )]
    NoBest {
        /// Steps that have a checkpoint.
        there: Vec<u64>,
    },
    /// The job does not train an adapter.
    #[error("--layout peft: the job has no model.lora, and so no adapter: export it as hugging-face")]
    NoAdapter,
    /// The base model of the adapter exists only in the run, or is merged from adapters.
    #[error(
        "--layout peft: the adapter's base is a model that the run itself made: export it as hugging-face"
    )]
    NoBase,
    /// Pushing is not possible in this environment; nothing was exported either.
    #[error("--push-to hub:{repository}: nothing was exported")]
    CannotPush {
        /// Repository as `owner/name`.
        repository: String,
        /// Error of the hub.
        source: push::PushError,
    },
    /// The push failed after the export.
    #[error("failed to push to hub:{repository}; the export is in {folder}", folder = folder.display())]
    Push {
        /// Repository as `owner/name`.
        repository: String,
        /// Folder of the exported files.
        folder: PathBuf,
        /// Error of the hub.
        source: push::PushError,
    },
}

impl From<TrainError> for ExportError {
    fn from(error: TrainError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl ExportError {
    /// Returns the exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Run(error) => error.exit_code(),
            Self::NoCheckpoint(_) => ExitCode::CorruptCheckpoint,
            Self::Push { source, .. } | Self::CannotPush { source, .. } => source.exit_code(),
            _ => ExitCode::Usage,
        }
    }
}

/// Exports the checkpoint that `args` selects.
///
/// # Errors
/// [`ExportError`].
pub fn run(args: &ExportArgs) -> Result<(), ExportError> {
    let folder = RunFolder::follow(&find_run(&args.run)?);
    let job = read_manifest_of_run(&folder)?;
    let spec = job.spec();
    if args.layout == Layout::Peft && spec.model.lora.is_none() {
        return Err(ExportError::NoAdapter);
    }
    let hub = args.push_to.as_ref().map(hub_of_environment).transpose()?;
    let (checkpoint, step) = choose::checkpoint(&folder, args.step)?;
    let spec = &trained_spec(spec, &checkpoint);
    let default = || folder.root().join(EXPORTS).join(format!("step-{step:06}"));
    let output = args.output.clone().unwrap_or_else(default);
    write(spec, &folder, &checkpoint, args, &output)?;
    tracing::info!("step {step} of {} is in {}", job.name(), output.display());
    if let (Some(hub), Some(target)) = (hub, &args.push_to) {
        let message = format!("{}: step {step}", job.name());
        let commit = hub.push(&target.0, &output, &message).map_err(failed(target, &output))?;
        tracing::info!("hub:{} is at commit {commit}", target.0);
    }
    Ok(())
}

/// Returns the specification with the compute dtype in which `checkpoint` was trained. A manifest may leave
/// the dtype to the device, and this process may run on another device than the training did.
fn trained_spec(spec: &ResolvedSpec, checkpoint: &Checkpoint) -> ResolvedSpec {
    let mut spec = spec.clone();
    let of_manifest = || spec.training.precision.on(spec.workers.device);
    spec.training.precision = state::precision_of(checkpoint).unwrap_or_else(of_manifest);
    spec
}

/// Returns the hub to push to. It is checked before anything is exported.
fn hub_of_environment(target: &HubTarget) -> Result<push::Hub, ExportError> {
    push::Hub::of_environment()
        .map_err(|source| ExportError::CannotPush { repository: target.0.to_string(), source })
}

/// Returns a closure that converts an error of the push into an [`ExportError`] with the folder of the
/// export.
fn failed<'a>(target: &'a HubTarget, folder: &'a Path) -> impl FnOnce(push::PushError) -> ExportError + 'a {
    move |source| ExportError::Push { repository: target.0.to_string(), folder: folder.to_owned(), source }
}

/// Finds the folder of a run, given by its path or by the job's name.
fn find_run(run: &Path) -> Result<PathBuf, ExportError> {
    let candidates = [run.to_path_buf(), Path::new("runs").join(run)];
    let found = candidates.into_iter().find(|folder| RunFolder::follow(folder).manifest().is_file());
    found.ok_or_else(|| ExportError::NoRun(run.to_path_buf()))
}

fn write(
    spec: &ResolvedSpec,
    folder: &RunFolder,
    checkpoint: &Checkpoint,
    args: &ExportArgs,
    output: &Path,
) -> Result<(), ExportError> {
    let (model_dir, base) = base_model(spec, folder.root())?.unzip();
    let tokenizer = load_tokenizer(spec, model_dir.as_deref())?;
    let decoder = model::whole_policy(spec, model_dir.as_deref(), &tokenizer)?;
    read_trained(&decoder, checkpoint)?;
    let dtype = match args.dtype {
        None => spec.checkpoint.export.dtype,
        Some(StoredDtype::Auto) => ExportDtype::Auto,
        Some(StoredDtype::Fp32) => ExportDtype::Fp32,
        Some(StoredDtype::Bf16) => ExportDtype::Bf16,
    };
    match args.layout {
        Layout::HuggingFace => {
            let dtype = export_kind(dtype, source_kind(model_dir.as_deref()));
            decoder.export(output, &ExportOptions { merge_lora: true, dtype }).map_err(TrainError::from)?;
        }
        Layout::Peft => {
            let base = base.filter(|_| spec.model.adapters.is_empty()).ok_or(ExportError::NoBase)?;
            decoder.save_adapter(output, Some(&base)).map_err(TrainError::from)?;
        }
    }
    Ok(tokenizer.save(output).map_err(TrainError::from)?)
}

/// Replaces the trained weights of `decoder` by those of the checkpoint.
fn read_trained(decoder: &Decoder, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    for (name, weight) in decoder.trainable_parameters() {
        checkpoint.load_into(&name, &weight.detach())?;
    }
    Ok(())
}
