//! The command of another operator's job, and the trainers that it launches.

use std::collections::BTreeMap;

use super::job::ClusterJob;
use super::reader::{JobCommand, JobReader};
use super::references::expanded;
use super::shape;
use crate::ConvertError;
use crate::launch::Launch;
use crate::python;
use crate::shell::limits::Budget;
use crate::shell::{self, ShellError};

/// Maximum length of a command in an error message, in characters.
const MAX_CHARS: usize = 80;

/// Launches, with notes on parts of a script that are unknown.
type Launches = (Vec<Launch>, Vec<String>);

/// Returns the launches of a job's command, which `reader` finds. `files` are those of ConfigMaps, by name,
/// and `environment` are variables that take precedence over the job's.
pub(super) fn launches(
    budget: &mut Budget,
    reader: &dyn JobReader,
    job: &ClusterJob,
    files: &BTreeMap<String, String>,
    environment: &BTreeMap<String, String>,
) -> Result<Launches, ConvertError> {
    let mut variables = reader.environment(job);
    variables.extend(environment.iter().map(|(name, value)| (name.clone(), value.clone())));
    let (script, texts) = script(reader, job, &variables)?;
    let shape = reader.shape(job);
    let machines = shape.num_pods.filter(|_| reader.runs_in_all_pods());
    let context = Context { files, variables: &variables, texts: &texts, machines };
    let (mut launches, notes) = context.launches(budget, &script, &[])?;
    if launches.is_empty() {
        return Err(no_launch(reader, job, &script));
    }
    for launch in &mut launches {
        let found = |path: &String| Some((path.clone(), files.get(base_name(path))?.clone()));
        let texts: Vec<_> = launch.files.iter().filter_map(found).collect();
        launch.texts.extend(texts);
        reader.translate(job, launch);
        shape::complete(launch, shape, reader.runs_in_all_pods());
        launch.cluster = Some(job.clone());
    }
    Ok((launches, notes))
}

fn no_launch(reader: &dyn JobReader, job: &ClusterJob, script: &str) -> ConvertError {
    let command = script.split_whitespace().collect::<Vec<_>>().join(" ");
    let command = command.chars().take(MAX_CHARS).collect();
    ConvertError::NoLaunchOfJob { kind: job.kind_name(), field: reader.field(), command }
}

/// Returns the command of a job as the text of a script, and the texts of which it consists.
fn script(
    reader: &dyn JobReader,
    job: &ClusterJob,
    variables: &BTreeMap<String, String>,
) -> Result<(String, Vec<String>), ConvertError> {
    let (script, texts) = match reader.command(job) {
        JobCommand::Script(text) => (text.clone(), vec![text]),
        JobCommand::Words(words) => {
            let quoted: Vec<_> = words.iter().map(|word| quoted(&expanded(word, variables))).collect();
            (quoted.join(" "), words)
        }
    };
    if script.trim().is_empty() {
        let (field, hint) = (reader.field(), reader.hint());
        return Err(ConvertError::NoCommand { kind: job.kind_name(), field, hint });
    }
    Ok((script, texts))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Variables and files that a command finds in its pod.
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
            // The script may contain a Python program, with text that no shell can expand.
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
