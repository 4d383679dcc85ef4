//! `rlctl plan`: the plan of a job, as text or for programs, and the result of a dry run on a cluster.

mod comparison;
mod fit;
mod machine;
mod measured_run;
mod nodes;
mod objects;
mod origins;
mod server;
mod text;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rlt_api::conflicts::ChosenDevice;
use rlt_api::resolved::ModelSource;
use rlt_api::{ExitCode, ValidatedJob};
use rlt_models::{ModelConfig, ModelConfigError};
use rlt_plan::{MeanLengths, Plan};
use serde_json::Value;

use crate::args::{DocumentFormat, PlanArgs};
use crate::{document, manifest};
use measured_run::MeasuredRun;

pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let (job, manifest) = match manifest::load_with_text(args.manifest.path()) {
        Ok(loaded) => loaded,
        Err(error) => return manifest::report(error),
    };
    let model = model_config(&job, args.model_config.as_deref())?;
    let device = machine::device(args, &job)?;
    if let Some(model) = &model {
        rlt_plan::check_model(job.spec(), model, ChosenDevice::without_machine(device))
            .context("fit the model to the workers")?;
    }
    let models = rlt_plan::Models { policy: model, reward: reward_models(&job)? };
    let manifest: Value = rlt_api::read_yaml(&manifest).context("read the manifest")?;
    if args.server {
        return server::ask(args, manifest, &job, &models);
    }
    let run = args.run.as_deref().map(MeasuredRun::read).transpose()?;
    let plan = match machine::of(args, device)? {
        Some(machine) => {
            rlt_plan::plan_for_lengths(&job, &models, &machine, lengths(args, &job, run.as_ref())?)
        }
        None => rlt_plan::plan(&job, &models),
    };
    let objects = objects::offline(args, &job, &manifest)?;
    let mut out = args.output.output();
    match args.output {
        DocumentFormat::Json => {
            document::write_json(&mut out, &everything(&plan, &job, &objects, run.as_ref())?)?
        }
        DocumentFormat::Yaml => write_objects(&mut out, &objects)?,
        DocumentFormat::Text => {
            out.write_all(text::render(&plan, &objects, run.as_ref()).as_bytes())?;
            for warning in job.warnings() {
                writeln!(out, "\nwarning: {}", warning.message)?;
            }
        }
    }
    out.flush()?;
    match fit::refusal(&plan) {
        Some(refusal) => {
            writeln!(rlt_terminal::messages(), "{refusal}")?;
            Ok(ExitCode::BadConfig)
        }
        None => Ok(ExitCode::Success),
    }
}

/// Returns the lengths for which times are predicted: those of the flags, else those of the run.
fn lengths(args: &PlanArgs, job: &ValidatedJob, run: Option<&MeasuredRun>) -> anyhow::Result<MeanLengths> {
    let prompt = args.prompt_tokens.or(run.and_then(|run| run.prompt_tokens));
    let completion = args.completion_tokens.or(run.and_then(|run| run.completion_tokens));
    MeanLengths::of(job.spec(), prompt, completion).context("predict the times of a step")
}

/// Collects the plan, the manifest with every default, the objects on a cluster, and the measurements of a
/// run.
fn everything(
    plan: &Plan,
    job: &ValidatedJob,
    objects: &[Value],
    run: Option<&MeasuredRun>,
) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(plan).context("write the plan")?;
    document["spec"] = serde_json::to_value(job.spec()).context("write the specification")?;
    document["objects"] = objects.into();
    document["warnings"] = job.warnings().iter().map(|warning| warning.message).collect();
    if let Some(run) = run {
        document["measured"] = serde_json::to_value(run).context("write what the run measured")?;
    }
    Ok(document)
}

fn write_objects(out: &mut impl io::Write, objects: &[Value]) -> anyhow::Result<()> {
    for object in objects {
        writeln!(out, "---")?;
        document::write_yaml(out, object)?;
    }
    Ok(())
}

/// Returns the given configuration, else that of the manifest's architecture, else the one in the model's
/// folder if that exists on this machine.
fn model_config(job: &ValidatedJob, named: Option<&Path>) -> anyhow::Result<Option<ModelConfig>> {
    let head = job.spec().algorithm.head();
    let read_config = |path: &Path| read(path, |document| ModelConfig::from_json_with_head(document, head));
    if let Some(named) = named {
        return read_config(named).map(Some);
    }
    if let Some(config) = rlt_plan::planned_model(job).context("plan the model of spec.model.architecture")? {
        return Ok(Some(config));
    }
    let folder = match &job.spec().model.source {
        ModelSource::Path(path) => PathBuf::from(path),
        ModelSource::Hub(_) | ModelSource::Architecture(_) => return Ok(None),
    };
    let file = folder.join("config.json");
    if file.is_file() { read_config(&file).map(Some) } else { Ok(None) }
}

/// Returns the configurations of reward models whose folders exist on this machine.
fn reward_models(job: &ValidatedJob) -> anyhow::Result<Vec<ModelConfig>> {
    let models = job.spec().rewards.functions.iter().filter_map(|function| function.model.as_ref());
    let files = models.filter_map(|model| Some(Path::new(model.path.as_ref()?).join("config.json")));
    files.filter(|file| file.is_file()).map(|file| read(&file, ModelConfig::from_classifier_json)).collect()
}

fn read(
    path: &Path,
    parse: impl FnOnce(&Value) -> Result<ModelConfig, ModelConfigError>,
) -> anyhow::Result<ModelConfig> {
    let read = || format!("read model configuration {}", path.display());
    let text = rlt_files::read_to_string(path, rlt_files::MAX_MODEL_JSON_BYTES).with_context(read)?;
    parse(&serde_json::from_str(&text).with_context(read)?).with_context(read)
}
