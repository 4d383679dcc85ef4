//! `rlt-trainer env`: runs another command of this program with the variables of a file. The variables that
//! all workers of a job share are thus stored once instead of in each pod. The modules that read the
//! variables document them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rlt_api::ExitCode;

/// Maximum size of a file of variables, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Options of `env`.
#[derive(Args, Clone, Debug)]
pub struct EnvArgs {
    /// JSON object of variables and their values, which replace those that are set
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Command with its arguments, such as `launch --manifest job.yaml`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// The command could not be executed.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The file cannot be read.
    #[error("failed to read variables from `{}`", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not a JSON object of strings.
    #[error("`{}` is no JSON object of strings", file.display())]
    Malformed {
        /// Path of the file.
        file: PathBuf,
        /// Error of the JSON parser, with the position.
        source: serde_json::Error,
    },
    /// The operating system refused to execute this program again.
    #[error("failed to start this program again")]
    Start(#[source] std::io::Error),
}

impl EnvError {
    /// Returns the exit code, to which the launcher and the operator react.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Malformed { .. } => ExitCode::Usage,
            Self::Read { .. } | Self::Start(_) => ExitCode::RetryableIo,
        }
    }
}

/// Replaces this process by the command (exec), so that the parent keeps the same child.
///
/// # Errors
/// [`EnvError`], if the process was not replaced.
pub fn run(args: &EnvArgs) -> Result<Infallible, EnvError> {
    let file = &args.file;
    let text = rlt_files::read_to_string(file, MAX_FILE_BYTES)
        .map_err(|source| EnvError::Read { file: file.clone(), source })?;
    let variables: BTreeMap<String, String> =
        serde_json::from_str(&text).map_err(|source| EnvError::Malformed { file: file.clone(), source })?;
    let program = std::env::current_exe().map_err(EnvError::Start)?;
    let mut command = Command::new(program);
    command.arg0("rlt-trainer").args(&args.command).envs(variables);
    Err(EnvError::Start(command.exec()))
}
