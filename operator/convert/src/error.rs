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
    /// The table of a project is malformed.
    #[error("a table of this program is malformed: {0}")]
    Table(String),
}
