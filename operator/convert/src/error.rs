//! Reasons for which an input is not converted.

use crate::settings::SettingsError;
use crate::shell::ShellError;

/// Input that cannot be converted to a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The script cannot be evaluated.
    #[error(transparent)]
    Shell(#[from] ShellError),
    /// A setting cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No command starts a known trainer.
    #[error(
        "it starts no trainer of verl (`verl.trainer.*`), TRL (`trl grpo`, `grpo.py`, ..) or open-instruct (`open_instruct/grpo_fast.py`, ..)"
    )]
    NoLaunch,
    /// The command of another operator's job starts no known trainer.
    #[error(
        "{field} of the {kind} `{command}` starts no trainer of verl, TRL or open-instruct that can be seen; if it runs a script, \
         convert that: rlctl convert SCRIPT"
    )]
    NoLaunchOfJob {
        /// Kind of the job.
        kind: &'static str,
        /// Field with the command.
        field: &'static str,
        /// The command, or its beginning.
        command: String,
    },
    /// The job of another operator has no command.
    #[error("{field} of the {kind}: a command that starts a trainer is expected, got none; {hint}")]
    NoCommand {
        /// Kind of the job.
        kind: &'static str,
        /// Field that would have the command.
        field: &'static str,
        /// Advice, as the end of a sentence.
        hint: &'static str,
    },
    /// The manifest is of a kind that is not read.
    #[error(
        "kind {kind} ({version}) is not read; expected RayJob (ray.io/v1) or TrainJob (trainer.kubeflow.org/v1alpha1){hint}"
    )]
    Kind {
        /// Kind of the manifest.
        kind: String,
        /// API version of the manifest.
        version: String,
        /// Advice, as the end of a sentence.
        hint: &'static str,
    },
    /// The file of manifests has no job.
    #[error(
        "the file has no job; expected a RayJob (ray.io/v1) or a TrainJob (trainer.kubeflow.org/v1alpha1)"
    )]
    NoJob,
    /// The manifest is not YAML.
    #[error("the manifest is not YAML: {0}")]
    Manifest(String),
    /// The table of a project is malformed.
    #[error("a table of this program is malformed: {0}")]
    Table(String),
}
