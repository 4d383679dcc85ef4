//! A program that runs in the cluster's network, with its output in a file.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::network::netns_option;

/// Longest end of a log that an error shows, in bytes.
const MAX_LOG_TAIL: usize = 3000;

/// An error of a program that should serve.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("starting {name} failed")]
    Start {
        /// Name of the program.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program ended, though it should serve.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// Name of the program.
        name: String,
        /// Exit status of the program.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
}

/// A running program. Dropping it reaps what the sweep has ended.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    /// Program with its arguments, environment and log, to start it again.
    command: Command,
    child: Child,
    log: PathBuf,
}

/// Network namespace and log folder of a cluster's programs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The network namespace.
    pub(crate) netns: String,
    /// The folder of logs.
    pub(crate) logs: PathBuf,
}

impl Place {
    /// Starts `program` under the name of its file.
    pub(crate) fn start(&self, program: &Path, arguments: &[String]) -> Result<Process, ProcessError> {
        self.start_with(program, arguments, &[])
    }

    /// Starts a program as [`Place::start`], with variables of the environment.
    pub(crate) fn start_with(
        &self,
        program: &Path,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> Result<Process, ProcessError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = self.logs.join(format!("{name}.log"));
        let spawn = || -> io::Result<(Command, Child)> {
            let file = File::options().create(true).append(true).open(&log)?;
            let mut command = Command::new("nsenter");
            command.arg(netns_option(&self.netns)).arg("--").arg(program).args(arguments);
            // Nothing outside is asked, so no proxy either.
            for variable in
                ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
            {
                command.env_remove(variable);
            }
            // Keys at the terminal are for the test; the cluster ends with its owner.
            command.process_group(0).envs(environment.iter().copied());
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
            let child = command.spawn()?;
            Ok((command, child))
        };
        match spawn() {
            Ok((command, child)) => Ok(Process { name, command, child, log }),
            Err(source) => Err(ProcessError::Start { name, source }),
        }
    }
}

impl Process {
    /// Fails if the program has ended.
    pub(crate) fn check(&mut self) -> Result<(), ProcessError> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let log = tail(&self.log);
                Err(ProcessError::Ended { name: self.name.clone(), status, log })
            }
            _ => Ok(()),
        }
    }

    /// The program's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The id of its process, which entering the network has not changed.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program by SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the program by SIGKILL and starts it again, with the same arguments and log.
    pub(crate) fn restart(&mut self) -> Result<(), ProcessError> {
        self.kill();
        match self.command.spawn() {
            Ok(child) => self.child = child,
            Err(source) => return Err(ProcessError::Start { name: self.name.clone(), source }),
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a log, whole lines; empty when there is none.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let start = text.len().saturating_sub(MAX_LOG_TAIL);
    let tail = String::from_utf8_lossy(&text[start..]).into_owned();
    match tail.split_once('\n') {
        Some((_, whole)) if start > 0 => whole.to_owned(),
        _ => tail,
    }
}
