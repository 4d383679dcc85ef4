//! `rlt-trainer launch`: starts this machine's ranks, watches them, and ends with the exit code of the first
//! failure.
//!
//! ```text
//! manifest + environment -> a worker for each local rank -> watch: signals to all, the first end -> outcome
//!        all ranks on this machine, retryable failure -> another attempt from the last complete checkpoint
//! ```
//! The launcher is the first process of a pod, and `rlctl run` executes it. A job of one rank runs in this
//! process. If the environment assigns ranks (`WORLD_SIZE`), whoever set it restarts them; on a cluster that
//! is the operator. A pod that runs all ranks may first restart them in place (`in_place`). If the operator
//! keeps pods for the next attempt, their launchers poll it for what to run (`follow`). Without `WORLD_SIZE`
//! all ranks are on this machine, and the launcher obeys `runPolicy.retries`. The code of a rank is in
//! [`crate::commands::worker`].

mod attempts;
mod budget;
mod children;
mod follow;
mod in_place;
mod key;
mod outcome;
mod stop_signal;

use std::path::PathBuf;
use std::time::Duration;

use rlt_api::{ExitCode, ValidatedJob};
use rlt_torch::collectives::{RendezvousError, Store, StoreSettings, serve_store_with};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use self::children::{Before, Children};
use self::key::Requested;
pub use self::outcome::{AttemptOutcome, Cut, End, Failed};
use self::stop_signal::StopSignal;
use crate::commands::worker::{self, ChooseRecipes, WorkerArgs};
use crate::parallel::{RankEnvironment, RankError};
use crate::run::error::TrainError;

/// Variable with the launcher's process id, set for the workers of a launcher.
const LAUNCHER_VARIABLE: &str = "RLT_LAUNCHER";
/// Variable with the seconds that earlier attempts took, set for the workers of a launcher. They count
/// towards the job's deadline.
const SPENT_VARIABLE: &str = "RLT_SPENT_SECONDS";

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
    /// A rank failed, and the others were ended with it.
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
    /// Exit code, to which the operator reacts.
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

/// Runs the ranks of this machine until they end. A rank in this process uses the recipes of `choose`.
///
/// # Errors
/// [`LaunchError`], which determines the exit code.
pub fn run(args: &WorkerArgs, choose: ChooseRecipes) -> Result<ExitCode, LaunchError> {
    let place = RankEnvironment::of_process()?;
    match (worker::read_job(args), place) {
        (Ok(job), place) if follow::is_asked_for(place.as_ref()) => {
            follow(&job, || follow::run(args, &job, place))
        }
        (Ok(job), None) if job.spec().workers.num_ranks() > 1 => follow(&job, || attempts::run(args, &job)),
        (Ok(job), Some(place)) if place.world_size > 1 => follow(&job, || run_placed(args, &job, &place)),
        // With at most one rank there is nothing to start.
        (job, _) => Ok(worker::run_as_read(args, job, choose).map_err(Box::new)?),
    }
}

/// Runs `work` in a trace span that is the parent of the spans of the ranks.
fn follow<T>(job: &ValidatedJob, work: impl FnOnce() -> T) -> T {
    let span = tracing::info_span!(target: rlt_traces::TARGET, "launch", job = job.name());
    rlt_traces::follow_environment(&span);
    span.in_scope(work)
}

/// Runs one attempt of the ranks that the environment assigns to this machine; the machine with rank 0 serves
/// the rendezvous.
fn run_placed(
    args: &WorkerArgs,
    job: &ValidatedJob,
    place: &RankEnvironment,
) -> Result<ExitCode, LaunchError> {
    check(place)?;
    if let Some(retries) = in_place::retries_left(place)? {
        return in_place::run(args, job, place, &retries);
    }
    let mut stop = StopSignal::listen(grace_period(job))?;
    let place = match key::of_place(place, &mut stop)? {
        Requested::Key(key) => RankEnvironment { key, ..place.clone() },
        Requested::Stopped => return Ok(ExitCode::Preempted),
    };
    let store = (place.rank == 0).then(|| serve(&place)).transpose()?;
    let manifest = text_of(job)?;
    match Children::start(args, &manifest, &place, &Before::default())?.watch(&mut stop, store.as_ref())? {
        AttemptOutcome::Ended(code) => Ok(code),
        AttemptOutcome::Failed(failed) => Err(LaunchError::Rank { failed, hint: String::new() }),
    }
}

/// Checks that the ranks of this machine are within the world size.
fn check(place: &RankEnvironment) -> Result<(), LaunchError> {
    if place.rank + place.local_world_size <= place.world_size {
        return Ok(());
    }
    Err(LaunchError::Place(RankError::Environment {
        name: "LOCAL_WORLD_SIZE",
        expected: format!("at most {} from RANK {}", place.world_size.saturating_sub(place.rank), place.rank),
        got: place.local_world_size.to_string(),
    }))
}

/// Serves the rendezvous of an attempt; port 0 is any free one.
fn serve(place: &RankEnvironment) -> Result<Store, LaunchError> {
    let port = place.master_port;
    let settings = StoreSettings {
        port,
        is_local: place.is_local(),
        attempt: place.attempt,
        world_size: place.world_size,
        key: place.key.clone(),
    };
    serve_store_with(&settings).map_err(|error| LaunchError::Serve { port, source: error.into() })
}

fn grace_period(job: &ValidatedJob) -> Duration {
    Duration::from_secs(job.spec().run_policy.termination_grace_period_seconds.into())
}

/// The manifest for the ranks of this machine, which inherit the variables of this process.
fn text_of(job: &ValidatedJob) -> Result<String, LaunchError> {
    Ok(job.to_masked_yaml().map_err(|error| Box::new(TrainError::from(error)))?)
}

/// Whether a launcher has started this process and reports its result.
pub fn is_launched() -> bool {
    std::env::var_os(LAUNCHER_VARIABLE).is_some()
}

/// Time that earlier attempts of this process's launcher took.
pub(crate) fn spent_before() -> Duration {
    let seconds = std::env::var(SPENT_VARIABLE).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Asks the kernel to kill this process when its launcher dies for any reason.
///
/// # Errors
/// [`LaunchError::Orphan`] if the launcher died before that took effect.
pub fn end_with_launcher() -> Result<(), LaunchError> {
    let Ok(text) = std::env::var(LAUNCHER_VARIABLE) else { return Ok(()) };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this worker may not be killed when its launcher dies");
    }
    let launcher = text.parse().unwrap_or(0);
    if getppid().map(Pid::as_raw_pid) != Some(launcher) {
        return Err(LaunchError::Orphan { launcher });
    }
    Ok(())
}

/// Path of the termination message of rank `rank`.
fn last_words(folder: &std::path::Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}
