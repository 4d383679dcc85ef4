//! `rlctl plan`: what a job will be, for people or for programs.

mod text;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rlt_api::plan::model_config::ModelConfig;
use rlt_api::plan::{self, Plan};
use rlt_api::resolved::ModelSource;
use rlt_api::{ExitCode, ValidatedJob};

use crate::args::{Format, PlanArgs};
use crate::manifest;

pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let job = match manifest::load(&args.file) {
        Ok(job) => job,
        Err(error) => return manifest::report(error),
    };
    let model = model_config(&job, args.model_config.as_deref())?;
    let plan = plan::plan(&job, model.as_ref());
    let mut out = io::stdout().lock();
    match args.output {
        Format::Json => write_json(&mut out, &job, &plan)?,
        Format::Text => out.write_all(text::render(&plan).as_bytes())?,
    }
    Ok(ExitCode::Success)
}

/// The plan and the manifest that it follows from, every default written out.
fn write_json(out: &mut impl io::Write, job: &ValidatedJob, plan: &Plan) -> anyhow::Result<()> {
    let mut document = serde_json::to_value(plan).context("write the plan")?;
    document["spec"] = serde_json::to_value(job.spec()).context("write the specification")?;
    serde_json::to_writer_pretty(&mut *out, &document).context("write the plan")?;
    writeln!(out)?;
    Ok(())
}

/// The configuration that was named, else the manifest's own, else the one in the model's folder if it is here.
fn model_config(job: &ValidatedJob, named: Option<&Path>) -> anyhow::Result<Option<ModelConfig>> {
    if let Some(named) = named {
        return read_config(named).map(Some);
    }
    if let Some(config) = plan::planned_model(job).context("plan the model of spec.model.architecture")? {
        return Ok(Some(config));
    }
    let folder = match &job.spec().model.source {
        ModelSource::Path(path) => PathBuf::from(path),
        ModelSource::Hub(_) | ModelSource::Architecture(_) => return Ok(None),
    };
    let file = folder.join("config.json");
    if file.is_file() { read_config(&file).map(Some) } else { Ok(None) }
}

fn read_config(path: &Path) -> anyhow::Result<ModelConfig> {
    let read = || format!("read model configuration {}", path.display());
    let text = fs::read_to_string(path).with_context(read)?;
    let document = serde_json::from_str(&text).with_context(read)?;
    ModelConfig::from_json(&document).with_context(read)
}
