//! `rlt-trainer launch`: starts this machine's ranks, watches them, and ends with the exit code of the first
//! failure.
//!
//! ```text
//! manifest + environment -> a worker for each local rank -> watch: signals to all, the first end -> outcome
//!        all ranks on this machine, retryable failure -> another attempt from the last complete checkpoint
//! ```
//! The launcher is the first process of a pod, and `rlctl run` executes it. A job of one rank runs in this
//! process. If the environment assigns ranks (`WORLD_SIZE`), whoever set the variable restarts them; on a
//! cluster that is the operator. A pod that runs all ranks may first restart them in place (`in_place`). If
//! the operator keeps pods for the next attempt, their launchers poll it for their next ranks (`follow`).
//! Without `WORLD_SIZE` all ranks are on this machine, and the launcher obeys `runPolicy.retries`. The code
//! of a rank is in [`crate::commands::worker`].

mod attempts;
mod budget;
mod children;
mod environment;
mod error;
mod follow;
mod in_place;
mod key;
mod machine;
mod outcome;
mod stop_signal;

use rlt_api::{ExitCode, ValidatedJob};
use rlt_parallel::RankEnvironment;

use self::children::{Before, Children};
pub(crate) use self::environment::spent_before;
use self::environment::{LAUNCHER_VARIABLE, SPENT_VARIABLE};
pub use self::environment::{end_with_launcher, is_launched};
pub use self::error::LaunchError;
use self::key::Requested;
use self::machine::{check, grace_period, last_words, serve, text_of};
pub use self::outcome::{AttemptOutcome, Cut, End, Failed};
use self::stop_signal::StopSignal;
use crate::commands::worker::{self, ChooseRecipes, WorkerArgs};

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
