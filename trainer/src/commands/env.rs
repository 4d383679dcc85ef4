//! `rlt-trainer env`: another command of this program, with the variables of a file. So the variables that
//! all workers of a job share are stored once, and not in each pod. Variables are documented where they are
//! read.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rlt_api::ExitCode;

/// Runs another command of this program, with variables of a file.
#[derive(Args, Clone, Debug)]
pub struct EnvArgs {
    /// A JSON object of variables and their values, which win over those that are set
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The command with its arguments, such as `launch --manifest job.yaml`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The file can not be read.
    #[error("failed to read variables from `{}`", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file holds something else.
    #[error("`{}` is no JSON object of strings", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Where it is not.
        source: serde_json::Error,
    },
    /// The system refuses to start this program again.
    #[error("failed to start this program again")]
    Start(#[source] std::io::Error),
}

impl EnvError {
    /// The exit code by which the launcher and the operator react.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Malformed { .. } => ExitCode::Usage,
            Self::Read { .. } | Self::Start(_) => ExitCode::RetryableIo,
        }
    }
}

/// Executes the command in this process (exec), so that the parent keeps the same child.
///
/// # Errors
/// [`EnvError`] when it does not.
pub fn run(args: &EnvArgs) -> Result<Infallible, EnvError> {
    let file = &args.file;
    let text =
        std::fs::read_to_string(file).map_err(|source| EnvError::Read { file: file.clone(), source })?;
    let variables: BTreeMap<String, String> =
        serde_json::from_str(&text).map_err(|source| EnvError::Malformed { file: file.clone(), source })?;
    let program = std::env::current_exe().map_err(EnvError::Start)?;
    let mut command = Command::new(program);
    command.arg0("rlt-trainer").args(&args.command).envs(variables);
    Err(EnvError::Start(command.exec()))
}
