//! The command of another operator's job, and the trainers that it launches.

use std::collections::BTreeMap;

use serde_json::Value;

use super::job::{ClusterJob, Kind};
use super::shape::{self, Shape};
use super::{ray, train};
use crate::ConvertError;
use crate::launch::Launch;
use crate::python;
use crate::shell::limits::Budget;
use crate::shell::{self, ShellError};

/// Longest beginning of a command in an error, in characters.
const MAX_CHARS: usize = 80;

/// Launches, with notes on what of a script is not known.
type Launches = (Vec<Launch>, Vec<String>);

/// Returns the launches of a job's command. `files` are those of ConfigMaps, by name, and `environment` are
/// variables that take precedence over the job's.
pub(super) fn launches(
    budget: &mut Budget,
    job: &ClusterJob,
    files: &BTreeMap<String, String>,
    environment: &BTreeMap<String, String>,
) -> Result<Launches, ConvertError> {
    let mut variables = environment_of(job);
    variables.extend(environment.iter().map(|(name, value)| (name.clone(), value.clone())));
    let texts = texts(job);
    let script = script(job, &texts, &variables)?;
    let machines = (job.kind == Kind::TrainJob).then(|| shape_of(job).num_pods).flatten();
    let context = Context { files, variables: &variables, texts: &texts, machines };
    let (mut launches, notes) = context.launches(budget, &script, &[])?;
    if launches.is_empty() {
        let command = script.split_whitespace().collect::<Vec<_>>().join(" ");
        let command: String = command.chars().take(MAX_CHARS).collect();
        return Err(ConvertError::NoLaunchOfJob { kind: job.kind_name(), field: field(job.kind), command });
    }
    for launch in &mut launches {
        let found = |path: &String| Some((path.clone(), files.get(base_name(path))?.clone()));
        let texts: Vec<_> = launch.files.iter().filter_map(found).collect();
        launch.texts.extend(texts);
        if job.kind == Kind::TrainJob {
            train::name_loaded(job, launch);
        }
        shape::complete(launch, job.kind, shape_of(job));
        launch.cluster = Some(job.clone());
    }
    Ok((launches, notes))
}

/// Returns the number of pods of a job that train, and of GPUs or processes of each.
pub(super) fn shape_of(job: &ClusterJob) -> Shape {
    match job.kind {
        Kind::RayJob => ray::shape(job),
        Kind::TrainJob => train::shape(job),
    }
}

fn environment_of(job: &ClusterJob) -> BTreeMap<String, String> {
    match job.kind {
        Kind::RayJob => ray::environment(job),
        Kind::TrainJob => train::environment(job),
    }
}

fn field(kind: Kind) -> &'static str {
    match kind {
        Kind::RayJob => "spec.entrypoint",
        Kind::TrainJob => "spec.trainer.command",
    }
}

/// Returns the texts of a job's command: a script, or words.
fn texts(job: &ClusterJob) -> Vec<String> {
    let entrypoint = || job.spec.get("entrypoint").and_then(Value::as_str).unwrap_or_default().to_owned();
    match job.kind {
        Kind::RayJob => vec![entrypoint()],
        Kind::TrainJob => train::words(job),
    }
}

/// Returns the command of a job as the text of a script.
fn script(
    job: &ClusterJob,
    texts: &[String],
    variables: &BTreeMap<String, String>,
) -> Result<String, ConvertError> {
    let (script, hint) = match job.kind {
        Kind::RayJob => (texts.concat(), "convert the script that is submitted to its Ray cluster"),
        Kind::TrainJob => {
            let words: Vec<_> = texts.iter().map(|word| quoted(&expanded(word, variables))).collect();
            (words.join(" "), "convert the script that its runtime starts")
        }
    };
    if script.trim().is_empty() {
        return Err(ConvertError::NoCommand { kind: job.kind_name(), field: field(job.kind), hint });
    }
    Ok(script)
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Replaces references to variables, `$(NAME)`, as the kubelet does; others stay.
fn expanded(word: &str, variables: &BTreeMap<String, String>) -> String {
    variables.iter().fold(word.to_owned(), |word, (name, value)| word.replace(&format!("$({name})"), value))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Values and files that a command finds in its pod.
struct Context<'a> {
    files: &'a BTreeMap<String, String>,
    variables: &'a BTreeMap<String, String>,
    /// Texts of the command, as the manifest has them.
    texts: &'a [String],
    machines: Option<u64>,
}

impl Context<'_> {
    /// Returns the launches of a script: of its commands, of a script that they name, or of a Python program
    /// within it.
    fn launches(
        &self,
        budget: &mut Budget,
        script: &str,
        arguments: &[String],
    ) -> Result<Launches, ConvertError> {
        let evaluation = match shell::evaluate_within(budget, script, self.variables, arguments) {
            Ok(evaluation) => evaluation,
            // A program within the script may hold what no shell expands.
            Err(error @ (ShellError::Word(_) | ShellError::Script(_))) => {
                return self.program_within().ok_or_else(|| error.into());
            }
            Err(error) => return Err(error.into()),
        };
        let launches = Launch::all_in(&evaluation, self.machines);
        if !launches.is_empty() {
            return Ok((launches, evaluation.notes));
        }
        for words in &evaluation.commands {
            if let Some(launches) = self.named_file(budget, words)? {
                return Ok(launches);
            }
        }
        let literal = evaluation.commands.iter().flatten().find_map(|word| self.program(word));
        Ok(literal.or_else(|| self.program_within()).unwrap_or((Vec::new(), evaluation.notes)))
    }

    /// Returns the launches of a script or program of a ConfigMap that a command runs.
    fn named_file(&self, budget: &mut Budget, words: &[String]) -> Result<Option<Launches>, ConvertError> {
        for (index, word) in words.iter().enumerate() {
            let Some(text) = self.files.get(base_name(word)) else { continue };
            if word.ends_with(".py") {
                return Ok(self.program(text));
            }
            let evaluation = shell::evaluate_within(budget, text, self.variables, &words[index + 1..])?;
            let launches = Launch::all_in(&evaluation, self.machines);
            return Ok((!launches.is_empty()).then_some((launches, evaluation.notes)));
        }
        Ok(None)
    }

    /// Returns the launch of a Python program that configures a trainer of TRL.
    fn program(&self, text: &str) -> Option<Launches> {
        let (mut launch, notes) = python::launch(text)?;
        launch.machines = self.machines;
        Some((vec![launch], notes))
    }

    /// Returns the launch of a Python program in a here-document, as Kubeflow's SDK writes it.
    fn program_within(&self) -> Option<Launches> {
        let parts = self.texts.iter().flat_map(|text| text.split("<<").skip(1));
        parts.into_iter().find_map(|part| {
            let (mark, rest) = part.split_once('\n')?;
            let mark = mark.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let end = rest.find(&format!("\n{mark}"))?;
            self.program(&rest[..end])
        })
    }
}
