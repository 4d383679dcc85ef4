//! Reasons for which a launch fails.

use rlt_api::ExitCode;
use rlt_parallel::RankError;
use rlt_torch::collectives::RendezvousError;

use super::outcome::Failed;
use crate::run::error::TrainError;

/// A launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The job failed in this process.
    #[error(transparent)]
    Train(#[from] Box<TrainError>),
    /// The environment assigns no valid ranks to this machine.
    #[error("failed to read this machine's ranks from the environment")]
    Place(#[from] RankError),
    /// The rendezvous cannot be served.
    #[error("failed to serve the rendezvous at port {port}")]
    Serve {
        /// Port of the rendezvous.
        port: u16,
        /// Error of the store.
        source: RendezvousError,
    },
    /// The operator did not hand out the key of the rendezvous.
    #[error(
        "the operator handed out no key for the rendezvous of the ranks within {seconds} s: is its status channel \
         reachable from this pod?"
    )]
    NoKey {
        /// Seconds for which the launcher has waited.
        seconds: u64,
    },
    /// A system call for the ranks failed.
    #[error("failed to {act}")]
    Process {
        /// Operation that failed.
        act: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A rank failed, and the other ranks were ended with it.
    #[error("{failed}{hint}")]
    Rank {
        /// Failure of the rank, with the launcher's exit code.
        failed: Box<Failed>,
        /// Reason why it was not retried; may be empty.
        hint: String,
    },
    /// Another attempt of the job has started, but processes of this one could not be killed.
    #[error("processes of attempt {attempt} still run, and another attempt has begun")]
    Remains {
        /// Number of the attempt whose processes remain.
        attempt: u64,
    },
    /// The launcher of this worker died while the worker was being started.
    #[error("the launcher (process {launcher}) that started this worker is gone")]
    Orphan {
        /// Process id of the launcher.
        launcher: i32,
    },
}

impl LaunchError {
    /// Returns the exit code, to which the operator reacts.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Train(error) => error.exit_code(),
            Self::Place(_) => ExitCode::Usage,
            Self::Serve { .. } | Self::NoKey { .. } | Self::Process { .. } => ExitCode::RetryableIo,
            Self::Rank { failed, .. } => failed.code,
            Self::Orphan { .. } | Self::Remains { .. } => ExitCode::PeerLost,
        }
    }
}
