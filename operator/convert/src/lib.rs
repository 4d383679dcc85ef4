//! Conversion of the settings of verl, TRL and open-instruct to a manifest.
//!
//! ```text
//! Markdown --blocks--> scripts
//! manifest of KubeRay or Kubeflow Trainer --cluster--> script, and fields of workers
//! script --shell--> commands --launch--> Launch (project, arguments, settings files)
//! settings --key tables--> Draft (fields and remarks) --finish--> manifest as YAML
//! ```
//!
//! All functions are pure: text in, text out. One table per project maps its settings; `rlctl convert` reads
//! files and validates manifests.

mod adapter;
mod cluster;
mod draft;
mod error;
mod key;
mod launch;
mod markdown;
mod open_instruct;
mod outcome;
mod python;
mod rewards;
mod settings;
pub mod shell;
mod tolerated;
mod tracking;
mod trl;
mod verl;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use cluster::Manifest;
pub use cluster::job::ClusterJob;
pub use error::ConvertError;
use key::Table;
pub use launch::{Launch, Project};
pub use outcome::{Fate, Outcome};
pub use settings::{Settings, SettingsError};
pub use shell::ShellError;
use shell::limits::Budget;

/// A manifest, with the outcome for each setting.
#[derive(Debug)]
pub struct Conversion {
    /// The manifest as YAML, with a comment for each setting without an equivalent.
    pub manifest: String,
    /// Outcome for each setting, in the order of the settings.
    pub outcomes: Vec<Outcome>,
    /// Python file (verl) or module (TRL) of a reward function, and the function's name: it needs a reward
    /// server.
    pub python_reward: Option<(String, String)>,
}

impl Conversion {
    /// Iterates over the settings without an equivalent.
    pub fn lost(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.fate, Fate::Absent(_) | Fate::Unknown(_)))
    }

    /// Whether every setting has an equivalent.
    pub fn is_whole(&self) -> bool {
        self.lost().next().is_none()
    }
}

/// Returns the launches of a script, with these variables in its environment, and notes on its evaluation.
///
/// # Errors
/// When the text is not a script, or launches no known trainer.
pub fn launches(
    script: &str,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    launches_within(&mut Budget::default(), script, environment, arguments)
}

fn launches_within(
    budget: &mut Budget,
    script: &str,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    let script = with_line_feeds(script);
    let evaluation = shell::evaluate_within(budget, &script, environment, arguments)?;
    let launches = Launch::all_in(&evaluation, None);
    if launches.is_empty() { Err(ConvertError::NoLaunch) } else { Ok((launches, evaluation.notes)) }
}

/// Ends lines by a line feed alone. In a script that was saved on Windows, a backslash would escape the
/// carriage return, and the settings on the next lines would be lost.
fn with_line_feeds(text: &str) -> Cow<'_, str> {
    if text.contains("\r\n") { text.replace("\r\n", "\n").into() } else { text.into() }
}

/// Returns the launches of the shell and Python blocks of a Markdown page: each block is a script, or a
/// program that configures a trainer of TRL. A block that cannot be evaluated is reported in a note.
///
/// # Errors
/// When no block launches a known trainer.
pub fn launches_of_markdown(
    text: &str,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    bounded(text)?;
    let (mut all, mut notes, mut budget) = (Vec::new(), Vec::new(), Budget::default());
    for (index, (language, block)) in markdown::blocks(text).iter().enumerate() {
        let found = match language {
            markdown::Language::Shell => launches_within(&mut budget, block, environment, arguments),
            markdown::Language::Python => launches_of_python(block, arguments),
        };
        match found {
            Ok((launches, more)) => {
                all.extend(launches);
                notes.extend(more);
            }
            // Most blocks install something.
            Err(ConvertError::NoLaunch) => {}
            Err(error) => notes.push(format!("block {} is left out: {error}", index + 1)),
        }
    }
    if all.is_empty() { Err(ConvertError::NoLaunch) } else { Ok((all, notes)) }
}

/// Returns the launch of a Python program that configures a trainer of TRL by literals, with further flags.
///
/// # Errors
/// When the program configures no known trainer.
pub fn launches_of_python(
    text: &str,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    bounded(text)?;
    let (mut launch, notes) = python::launch(&with_line_feeds(text)).ok_or(ConvertError::NoLaunch)?;
    launch.arguments.extend_from_slice(arguments);
    Ok((vec![launch], notes))
}

/// Returns the launches of the jobs of a manifest, KubeRay's RayJob and Kubeflow Trainer's TrainJob, with
/// further settings.
///
/// # Errors
/// When the commands of no job launch a known trainer.
pub fn launches_of_manifest(
    manifest: &Manifest,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    cluster::launches(manifest, environment, arguments)
}

/// Converts one launch to the manifest of a job with this name.
///
/// `files` are the texts of the settings files that the launch names, in the same order.
///
/// # Errors
/// When a setting cannot be read.
pub fn convert(launch: &Launch, files: &[String], name: &str) -> Result<Conversion, ConvertError> {
    files.iter().try_for_each(|file| bounded(file))?;
    let settings = launch.settings(files)?;
    let table = Table::of(launch.project, &launch.trainer)?;
    let (mut draft, mut outcomes) = match launch.project {
        Project::Verl => verl::convert(launch, &table, &settings, name),
        Project::Trl => trl::convert(launch, &table, &settings, name),
        Project::OpenInstruct => open_instruct::convert(launch, &table, &settings, name),
    };
    table.settle(&settings, &mut outcomes);
    cluster::convert(launch, &mut draft, &mut outcomes)?;
    tolerated::resolve(&mut draft);
    tolerated::refused::correct(&mut draft, launch, &mut outcomes);
    let manifest = draft.to_yaml(launch, &outcomes);
    Ok(Conversion { manifest, outcomes, python_reward: draft.python_reward })
}

/// Largest size of a script, page or settings file, in bytes.
pub const MAX_BYTES: usize = shell::limits::MAX_BYTES;

/// Rejects a text that is larger than [`MAX_BYTES`].
fn bounded(text: &str) -> Result<(), ConvertError> {
    if text.len() > MAX_BYTES { Err(ShellError::Large(MAX_BYTES).into()) } else { Ok(()) }
}

/// Returns the settings that a project's trainer is not known to have.
///
/// # Errors
/// When the project's table is malformed, which would be a bug of this crate.
pub fn unknown<'a>(
    project: Project,
    trainer: &str,
    keys: impl Iterator<Item = &'a str>,
) -> Result<Vec<&'a str>, ConvertError> {
    let table = Table::of(project, trainer)?;
    Ok(keys.filter(|key| !table.knows(key)).collect())
}
