//! `rlt-trainer launch`: starts this machine's ranks, watches them, and ends with the exit code of whatever came first.
//!
//! ```text
//! manifest + environment -> one worker for each local rank -> watch: signals to all, the first end -> verdict
//! ```
//! It is the first process of a pod, and what `rlctl run` becomes. A job of one rank runs in this very process. What a
//! worker does is in [`crate::worker`].

mod children;
mod verdict;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rlt_api::{ExitCode, ValidatedJob};
use rlt_torch::collectives::{RendezvousError, Store, serve_store};
use rustix::process::{Signal, set_parent_process_death_signal};

use self::children::Children;
pub use self::verdict::{End, Verdict};
use crate::error::TrainError;
use crate::parallel::{RankEnvironment, RankError};
use crate::worker::{self, WorkerArgs};

/// How long ranks may go on after one of them has failed: long enough to notice it and to say whom they miss.
const GRACE: Duration = Duration::from_secs(6);

/// Set for the workers of a launcher.
const LAUNCHED_VARIABLE: &str = "RLT_LAUNCHED";

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The job failed in this process.
    #[error(transparent)]
    Train(#[from] Box<TrainError>),
    /// The environment names no place among the ranks.
    #[error("failed to find this machine's place among the ranks")]
    Place(#[from] RankError),
    /// The rendezvous can not be served.
    #[error("failed to serve the rendezvous at port {port}")]
    Serve {
        /// The port.
        port: u16,
        /// What the store said.
        source: RendezvousError,
    },
    /// A system call around the ranks failed.
    #[error("failed to {act}")]
    Process {
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A rank failed, and the others ended with it.
    #[error("rank {rank} {how}{}", others(ends))]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// How it ended, with its own last words.
        how: String,
        /// How the others ended.
        ends: BTreeMap<usize, String>,
        /// What the launch ends with.
        code: ExitCode,
    },
}

impl LaunchError {
    /// The exit code that tells what to do about it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Train(error) => error.exit_code(),
            Self::Place(_) => ExitCode::Usage,
            Self::Serve { .. } | Self::Process { .. } => ExitCode::RetryableIo,
            Self::Rank { code, .. } => *code,
        }
    }
}

fn others(ends: &BTreeMap<usize, String>) -> String {
    ends.iter().map(|(rank, how)| format!("\n  then rank {rank} {how}")).collect()
}

/// Runs the ranks of this machine to their end.
///
/// # Errors
/// [`LaunchError`], which names its exit code.
pub fn run(args: &WorkerArgs) -> Result<ExitCode, LaunchError> {
    let place = RankEnvironment::of_process()?;
    let job = match (worker::read_manifest(&args.manifest), &place) {
        (Ok(job), None) if job.spec().workers.count > 1 => job,
        (Ok(job), Some(place)) if place.world_size > 1 => job,
        // One rank, or none: nothing to start.
        (job, _) => return Ok(worker::run_as_read(args, job).map_err(Box::new)?),
    };
    let (place, _store) = match place {
        None => everybody_is_here(&job)?,
        Some(place) => here_by_environment(place)?,
    };
    let manifest = job.to_yaml().map_err(|error| Box::new(TrainError::from(error)))?;
    let verdict = Children::start(args, &manifest, &place)?.watch(GRACE)?;
    match verdict {
        Verdict::Ended(code) => Ok(code),
        Verdict::Failed { rank, how, ends, code } => Err(LaunchError::Rank { rank, how, ends, code }),
    }
}

/// All ranks of the job on this machine, at any free port.
fn everybody_is_here(job: &ValidatedJob) -> Result<(RankEnvironment, Option<Store>), LaunchError> {
    let count = job.spec().workers.count as usize;
    let store = serve(0, 1, count)?;
    let place = RankEnvironment {
        rank: 0,
        world_size: count,
        local_world_size: count,
        master_address: "localhost".to_owned(),
        master_port: store.port(),
        attempt: 1,
    };
    Ok((place, Some(store)))
}

/// The ranks that the environment gives to this machine; the one with rank 0 serves the rendezvous.
fn here_by_environment(place: RankEnvironment) -> Result<(RankEnvironment, Option<Store>), LaunchError> {
    if place.rank + place.local_world_size > place.world_size {
        return Err(RankError::Environment {
            name: "LOCAL_WORLD_SIZE",
            expected: format!("at most {} from RANK {}", place.world_size - place.rank, place.rank),
            got: place.local_world_size.to_string(),
        }
        .into());
    }
    let serves = place.rank == 0;
    let store = serves.then(|| serve(place.master_port, place.attempt, place.world_size)).transpose()?;
    Ok((place, store))
}

fn serve(port: u16, attempt: u64, world_size: usize) -> Result<Store, LaunchError> {
    serve_store(port, attempt, world_size).map_err(|error| LaunchError::Serve { port, source: error.into() })
}

/// Whether a launcher has started this process, and will say what it came to.
pub fn is_launched() -> bool {
    std::env::var_os(LAUNCHED_VARIABLE).is_some()
}

/// Lets the system kill this process when its launcher dies, however that comes.
pub fn end_with_launcher() {
    if !is_launched() {
        return;
    }
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this worker may outlive its launcher");
    }
}

/// Where the ranks of this machine leave their last words.
fn last_words(folder: &std::path::Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}
