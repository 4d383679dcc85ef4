//! `rlctl convert`: reads files, writes a manifest and reports the outcome for each setting. The conversion
//! itself is in `rlt-convert`.

mod report;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, bail};
use rlt_api::ExitCode;
use rlt_convert::{ClusterJob, Conversion, Launch, Manifest, Project};
use rlt_objects::pod_template;

use crate::args::{ConvertArgs, SourceProject};
use crate::manifest::STANDARD_INPUT;

/// Maximum size of a script or settings file, in bytes.
const MAX_BYTES: u64 = rlt_convert::MAX_BYTES as u64;
/// Largest length of a job's name, in characters.
const MAX_NAME_LEN: usize = 52;
/// Head of a Python reward server that calls a reward function of verl.
const VERL_SERVER: &str = include_str!("convert/verl_server.py");
const TRL_SERVER: &str = include_str!("convert/trl_server.py");
const SERVER: &str = include_str!("convert/server.py");

pub(crate) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let (launch, files, notes) = launch(args)?;
    let conversion = rlt_convert::convert(&launch, &files, &name(args, &launch))?;
    match &args.output {
        Some(path) => {
            fs::write(path, &conversion.manifest).with_context(|| format!("write {}", path.display()))?
        }
        None => rlt_terminal::document().write_all(conversion.manifest.as_bytes())?,
    }
    let server =
        args.reward_server.as_deref().map(|path| write_server(path, &launch, &conversion)).transpose()?;
    let problems =
        rlt_api::validate_with(&conversion.manifest, pod_template::problems_of).err().unwrap_or_default();
    let report = report::Report {
        conversion: &conversion,
        notes: &notes,
        problems: &problems,
        server: server.flatten(),
    };
    write!(rlt_terminal::messages(), "{report}")?;
    Ok(if problems.is_empty() { ExitCode::Success } else { ExitCode::Usage })
}

/// Returns the launch to convert, the texts of its settings files, and notes on unknown parts of its script.
fn launch(args: &ConvertArgs) -> anyhow::Result<(Launch, Vec<String>, Vec<String>)> {
    let Some(file) = &args.file else {
        let launch = named(args, &args.settings)?;
        let files = texts(&launch, Path::new(""))?;
        return Ok((launch, files, Vec::new()));
    };
    let text = read(file)?;
    let extension = file.extension().and_then(|extension| extension.to_str());
    // Standard input has no extension.
    let may_be_manifest = matches!(extension, None | Some("yaml" | "yml" | "json"));
    let manifest = if may_be_manifest { Manifest::read(&text)? } else { None };
    if manifest.is_some() && (args.from.is_some() || args.trainer.is_some()) {
        bail!("--from, --trainer: expected none for a manifest of Kubernetes, whose command says both");
    }
    if manifest.is_none() && matches!(extension, Some("yaml" | "yml")) {
        let launch = named(args, &args.settings)?;
        let further = texts(&launch, file.parent().unwrap_or(Path::new("")))?;
        return Ok((launch, [vec![text], further].concat(), Vec::new()));
    }
    let mut environment: BTreeMap<_, _> = args.variables.iter().cloned().collect();
    // The home of a pod is another one.
    if let Some(home) = env::var("HOME").ok().filter(|_| manifest.is_none()) {
        environment.entry("HOME".to_owned()).or_insert(home);
    }
    let settings = &args.settings;
    let (launches, mut notes) = match (&manifest, extension) {
        (Some(manifest), _) => rlt_convert::launches_of_manifest(manifest, &environment, settings)?,
        (None, Some("md" | "mdx")) => rlt_convert::launches_of_markdown(&text, &environment, settings)?,
        (None, Some("py")) => rlt_convert::launches_of_python(&text, settings)?,
        (None, _) => rlt_convert::launches(&text, &environment, settings)?,
    };
    let num_launches = launches.len();
    let index = args.launch.wrapping_sub(1);
    let Some(launch) = launches.into_iter().nth(index) else {
        bail!(
            "--launch: expected 1 to {num_launches}, the trainers that the file starts, got {}",
            args.launch
        );
    };
    if num_launches > 1 {
        notes.push(format!(
            "the file starts {num_launches} trainers; this is number {} (--launch)",
            args.launch
        ));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let files = texts(&launch, folder)?;
    Ok((launch, files, notes))
}

/// Returns the texts of the settings files that a launch names: those that its script writes, and files.
fn texts(launch: &Launch, folder: &Path) -> anyhow::Result<Vec<String>> {
    let text = |name: &String| match launch.texts.get(name) {
        Some(text) => Ok(text.clone()),
        None => read_beside(folder, name),
    };
    launch.files.iter().map(text).collect()
}

/// Makes a launch from settings alone, for the project that the user names by `--from`.
fn named(args: &ConvertArgs, settings: &[String]) -> anyhow::Result<Launch> {
    let (project, default, others) = match args.from {
        Some(SourceProject::Verl) => (Project::Verl, "main_ppo", "sft_trainer"),
        Some(SourceProject::Trl) => (Project::Trl, "grpo", "sft, dpo, reward or another of its trainers"),
        Some(SourceProject::OpenInstruct) => {
            (Project::OpenInstruct, "grpo_fast", "finetune, dpo, ppo or reward_modeling")
        }
        None => bail!(
            "--from: expected verl, trl or open-instruct for settings without a script, got none; manifests of KubeRay and \
             Kubeflow Trainer need no --from"
        ),
    };
    let trainer = args.trainer.as_deref().unwrap_or(default);
    if !project.has_trainer(trainer) {
        bail!("--trainer: expected {default}, {others} for {}, got {trainer:?}", project.name());
    }
    Ok(Launch::new(project, trainer, settings))
}

/// Reads a settings file that a script names, relative to the working directory or to the script's folder.
fn read_beside(folder: &Path, name: &str) -> anyhow::Result<String> {
    let here = PathBuf::from(name);
    let path = if here.exists() { here } else { folder.join(name) };
    let read = rlt_files::read_to_string(&path, MAX_BYTES);
    read.with_context(|| format!("read {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let read = rlt_files::read_argument(path, MAX_BYTES);
    read.with_context(|| format!("read {}", path.display()))
}

/// Returns the job's name, made of lower-case letters, digits and dashes from the given name, that of another
/// operator's job, or the file's.
fn name(args: &ConvertArgs, launch: &Launch) -> String {
    let stem = args.file.as_ref().and_then(|file| file.file_stem()).and_then(|stem| stem.to_str());
    let of_job = launch.cluster.as_ref().and_then(ClusterJob::name);
    let of_file = of_job.or(stem.filter(|stem| *stem != STANDARD_INPUT));
    let text = args.name.as_deref().or(of_file).unwrap_or(&launch.trainer);
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let name: String = text.trim_start_matches("run_").chars().map(plain).take(MAX_NAME_LEN).collect();
    let name = name.trim_matches('-');
    if name.starts_with(|first: char| first.is_ascii_lowercase()) {
        name.to_owned()
    } else {
        "job".to_owned()
    }
}

/// Writes the server of a Python reward function, if the conversion needs one.
fn write_server(path: &Path, launch: &Launch, conversion: &Conversion) -> anyhow::Result<Option<PathBuf>> {
    let Some((module, function)) = &conversion.python_reward else { return Ok(None) };
    let template = if launch.project == Project::Verl { VERL_SERVER } else { TRL_SERVER };
    let quoted = |text: &str| serde_json::to_string(text);
    let text = template.replace("@MODULE@", &quoted(module)?).replace("@FUNCTION@", &quoted(function)?);
    fs::write(path, text + SERVER).with_context(|| format!("write {}", path.display()))?;
    Ok(Some(path.to_owned()))
}
