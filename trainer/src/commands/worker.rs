//! `rlt-trainer worker`: one rank of a run, from the manifest's text to the process's exit code.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use rlt_api::resolved::{ResolvedSpec, TrainingLength};
use rlt_api::{ExitCode, ValidatedJob, spec};
use rlt_channel::environment;
use rlt_core::partition::Balance;
use rlt_parallel::{RankEnvironment, Ranks};
use rlt_storage::checkpoint::clear_copies;
use rlt_storage::error_chain;
use rlt_storage::run_folder::RunFolder;
use tracing::field::Empty;

use crate::commands::{launch, termination};
use crate::observe::status_channel::StatusChannel;
use crate::observe::stop::{Outcome, SetupGuard, StopRequest};
use crate::observe::{found_result, report};
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::train::train;
use crate::run::{consent, identity, out_of_memory, setup};

/// Maximum time that a pod waits for the lock of its run folder: longer than a file server holds the lock of
/// a dead client.
const LOCK_TIMEOUT: Duration = Duration::from_secs(180);
/// Pause between two attempts to lock the folder.
const LOCK_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum time that the setup may take to end after a stop was requested.
const SETUP_GRACE: Duration = Duration::from_secs(3);

/// Runs a manifest in this process.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Manifest of the job; - for standard input
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,
    /// Run folder; by default runs/ and the job's name.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Remove the files of an earlier run in the folder and start over.
    #[arg(long)]
    pub overwrite: bool,
    /// Variable of the environment that the manifest may send to an address that it names, such as a
    /// reward server; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub send_env: Vec<String>,
}

/// Function that creates the recipes of a manifest.
pub type ChooseRecipes = fn(&ResolvedSpec) -> Recipes;

impl WorkerArgs {
    /// Returns the path of the run folder of `job`.
    pub(crate) fn root(&self, job: &ValidatedJob) -> PathBuf {
        self.output.clone().unwrap_or_else(|| Path::new("runs").join(job.name()))
    }
}

/// Trains until the run is complete, or until it is asked to stop.
///
/// # Errors
/// [`TrainError`], which determines the exit code.
pub fn run(args: &WorkerArgs, choose: ChooseRecipes) -> Result<ExitCode, TrainError> {
    run_as_read(args, read_job(args), choose)
}

/// Trains as [`run`] does, with a manifest that the caller has already read.
pub(crate) fn run_as_read(
    args: &WorkerArgs,
    job: Result<ValidatedJob, TrainError>,
    choose: ChooseRecipes,
) -> Result<ExitCode, TrainError> {
    let channel = Arc::new(StatusChannel::from_environment());
    let outcome = job.and_then(|job| {
        let name = job.name().to_owned();
        follow(&name, || run_job(args, job, &channel, choose))
    });
    if let (Ok(ExitCode::Success), Some(message)) = (&outcome, channel.termination_message()) {
        termination::write(&message);
    }
    channel.finish(outcome.as_ref().map_err(|error| (error.exit_code(), error_chain(error))).copied());
    outcome
}

/// Runs `work` in the trace span of this rank's run, whose parent is the span in its environment.
fn follow<T>(job: &str, work: impl FnOnce() -> Result<T, TrainError>) -> Result<T, TrainError> {
    let rank = std::env::var("RANK").unwrap_or_else(|_| "0".to_owned());
    let span = tracing::info_span!(
        target: rlt_traces::TARGET, "run", job, rank, otel.status_code = Empty, otel.status_description = Empty
    );
    rlt_traces::follow_environment(&span);
    if let Some(trace) = rlt_traces::trace_id(&span) {
        tracing::info!(trace, "this run is traced");
    }
    let outcome = span.in_scope(work);
    if let Err(error) = &outcome {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", tracing::field::display(error));
    }
    outcome
}

fn run_job(
    args: &WorkerArgs,
    job: ValidatedJob,
    channel: &Arc<StatusChannel>,
    choose: ChooseRecipes,
) -> Result<ExitCode, TrainError> {
    let deadline = job.spec().run_policy.active_deadline_seconds.map(Duration::from_secs);
    let deadline = deadline.map(|deadline| deadline.saturating_sub(launch::spent_before()));
    let stop = StopRequest::listen(deadline).map_err(|source| TrainError::Io {
        act: "listen for signals in",
        path: "this process".to_owned(),
        source,
    })?;
    let setup = end_blocked_setup(&job, &stop, channel)?;
    let ranks = join(&job)?;
    let outcome = run_rank(args, job, stop, setup, &ranks, channel, choose);
    if let Err(error) = &outcome {
        tell_the_others(&ranks, error);
    }
    outcome
}

/// Starts a watch that ends this process as preempted if a stop is requested while its setup blocks.
fn end_blocked_setup(
    job: &ValidatedJob,
    stop: &StopRequest,
    channel: &Arc<StatusChannel>,
) -> Result<SetupGuard, TrainError> {
    let grace = Duration::from_secs(job.spec().run_policy.termination_grace_period_seconds.into()) / 2;
    let channel = Arc::clone(channel);
    let end = move || {
        tracing::warn!("asked to stop while the run was being set up: there is nothing to save");
        channel.finish(Ok(ExitCode::Preempted));
        // Other threads still wait or compute, so no exit handler may run.
        signal_hook::low_level::exit(ExitCode::Preempted.code().into());
    };
    SetupGuard::watch(stop.clone(), grace.min(SETUP_GRACE), end).map_err(|source| TrainError::Io {
        act: "start a thread in",
        path: "this process".to_owned(),
        source,
    })
}

/// Joins the ranks of `job`, with the rank that this process's environment assigns.
fn join(job: &ValidatedJob) -> Result<Ranks, TrainError> {
    let environment = RankEnvironment::of_process()?;
    let (num_ranks, world_size) = (
        job.spec().workers.num_ranks() as usize,
        environment.as_ref().map_or(1, |environment| environment.world_size),
    );
    if num_ranks != world_size {
        let spec::WorkersSpec { count, ranks_per_worker, .. } = job.spec().workers;
        return Err(TrainError::OtherWorldSize { count, ranks_per_worker, world_size });
    }
    let peer_timeout = Duration::from_secs(job.spec().workers.peer_timeout_seconds.into());
    let ranks = match environment {
        Some(environment) => Ranks::join(&environment, peer_timeout)?,
        None => Ranks::alone(),
    };
    Ok(ranks.balanced_by(match job.spec().workers.balance {
        spec::Balance::Work => Balance::Work,
        spec::Balance::Count => Balance::Count,
        spec::Balance::Order => Balance::Order,
    }))
}

fn run_rank(
    args: &WorkerArgs,
    job: ValidatedJob,
    stop: StopRequest,
    setup_guard: SetupGuard,
    ranks: &Ranks,
    channel: &Arc<StatusChannel>,
    choose: ChooseRecipes,
) -> Result<ExitCode, TrainError> {
    let root = args.root(&job);
    let folder =
        if ranks.is_leader() { take_folder(args, &root, &job, &stop)? } else { RunFolder::follow(&root) };
    let complete = ranks.is_leader().then(|| is_complete(&folder, &job));
    if ranks.broadcast(complete)? {
        drop(setup_guard);
        return if ranks.is_leader() { already_complete(&folder, channel) } else { Ok(ExitCode::Success) };
    }
    let built = out_of_memory::explained(|| setup::setup(job, folder, stop, ranks.clone(), choose));
    let (mut run, mut roles, mut data) = built?;
    drop(setup_guard);
    run.context.watch_mut().report_to(channel);
    channel.report_commits(&run.source.commits);
    if let (Some(warning), true) = (&run.warning, run.ranks.is_leader()) {
        run.context.watch().warn(warning);
    }
    for warning in run.data_warnings.iter().filter(|_| run.ranks.is_leader()) {
        tracing::warn!("this run {warning}");
    }
    Ok(match train(&mut run, &mut roles, &mut data)? {
        Outcome::Complete => ExitCode::Success,
        Outcome::Stopped(_) => ExitCode::Preempted,
    })
}

fn take_folder(
    args: &WorkerArgs,
    root: &Path,
    job: &ValidatedJob,
    stop: &StopRequest,
) -> Result<RunFolder, TrainError> {
    let folder = match args.overwrite {
        true => start_afresh(root, job)?,
        false => RunFolder::lock_patiently(root, lock_patience(stop))?.ready()?,
    };
    folder.claim(&job.to_masked_yaml()?, identity::changed_setting)?;
    Ok(folder)
}

/// Returns a function that waits between two attempts to lock a folder, and returns whether to try again. On
/// a cluster the holder may be a deleted pod whose lock the file server keeps for a while. Elsewhere the
/// holder is another run, for which this process does not wait.
fn lock_patience(stop: &StopRequest) -> impl FnMut(&str) -> bool {
    let is_pod = std::env::var_os(environment::JOB_UID).is_some();
    let limit = if is_pod { LOCK_TIMEOUT } else { Duration::ZERO };
    let started = Instant::now();
    while_locked(limit, stop, move || started.elapsed(), std::thread::sleep)
}

/// Returns a function that waits as that of [`lock_patience`] does, up to `limit` after the first attempt.
/// `elapsed` and `sleep` are the clock and the pause, which tests replace.
fn while_locked(
    limit: Duration,
    stop: &StopRequest,
    elapsed: impl Fn() -> Duration,
    sleep: impl Fn(Duration),
) -> impl FnMut(&str) -> bool {
    let mut is_first = true;
    move |holder: &str| {
        if elapsed() >= limit || stop.reason().is_some() {
            return false;
        }
        if std::mem::take(&mut is_first) {
            let seconds = limit.as_secs();
            tracing::warn!(
                "another process holds the run folder ({holder}), waiting up to {seconds} s for it"
            );
        }
        sleep(LOCK_INTERVAL);
        true
    }
}

/// Removes the files of an earlier run and the copies of its checkpoints. Copies are removed only if they
/// belong to the run in the folder or to one with this manifest. They are removed first, because the folder's
/// manifest proves their ownership.
pub(crate) fn start_afresh(root: &Path, job: &ValidatedJob) -> Result<RunFolder, TrainError> {
    let folder = RunFolder::lock(root)?;
    if let Some(uri) = &job.spec().checkpoint.uri {
        let earlier = std::fs::read_to_string(folder.manifest()).ok();
        let earlier = earlier.map(|manifest| identity::of_manifest(&manifest));
        clear_copies(uri, &identity::of_job(job)?, earlier.as_ref())?;
    }
    folder.clear()?;
    Ok(folder)
}

/// Reports the error of this rank to all ranks. Only the first failure is kept; a rank that fails later logs
/// the first one.
fn tell_the_others(ranks: &Ranks, error: &TrainError) {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let text: Vec<String> = causes.map(ToString::to_string).collect();
    let first = ranks.report_failure(&text.join(": "));
    if let Some(first) = first.filter(|first| !first.starts_with(&format!("rank {}:", ranks.rank()))) {
        tracing::warn!("rank {} failed after the first failure, {first}", ranks.rank());
    }
}

/// Reads the job to run. The user must consent to each environment variable that the job sends to an address
/// of the manifest. Ranks that were started by a launcher do not ask again.
///
/// # Errors
/// Those of [`read_manifest`], or [`TrainError::NotAllowed`].
pub(crate) fn read_job(args: &WorkerArgs) -> Result<ValidatedJob, TrainError> {
    let job = read_manifest(&args.manifest)?;
    if !launch::is_launched() {
        consent::check(job.spec(), &args.send_env)?;
    }
    Ok(job)
}

/// Reads and validates a manifest, which in a pod the operator has already accepted.
///
/// # Errors
/// [`TrainError::Manifest`] with every problem, or [`TrainError::ReadManifest`].
pub(crate) fn read_manifest(path: &Path) -> Result<ValidatedJob, TrainError> {
    parse(&text_of(path)?, std::env::var_os(environment::JOB_UID).is_some())
}

/// Reads the manifest of an existing run, which may have been started by an earlier release.
///
/// # Errors
/// [`TrainError::Manifest`] if this release cannot read it, or [`TrainError::ReadManifest`].
pub(crate) fn read_manifest_of_run(folder: &RunFolder) -> Result<ValidatedJob, TrainError> {
    parse(&text_of(&folder.manifest())?, true)
}

fn text_of(path: &Path) -> Result<String, TrainError> {
    let text = rlt_files::read_argument(path, rlt_files::MAX_MANIFEST_BYTES);
    text.map_err(|source| TrainError::ReadManifest { path: path.to_owned(), source })
}

/// Validates a manifest. If it `was_accepted` by an earlier release, it may violate rules that were added
/// later, so that the run can continue, but all of its fields must be known.
fn parse(text: &str, was_accepted: bool) -> Result<ValidatedJob, TrainError> {
    let problems = match rlt_api::validate(text) {
        Ok(job) => return Ok(job),
        Err(problems) => problems,
    };
    match rlt_api::read_accepted(text) {
        Ok(job) if was_accepted => {
            let refused: Vec<_> = problems.iter().map(ToString::to_string).collect();
            tracing::warn!("this release would refuse the manifest of a new job: {}", refused.join("; "));
            Ok(job)
        }
        _ => Err(TrainError::Manifest(problems)),
    }
}

/// Whether an earlier process has completed this job.
fn is_complete(folder: &RunFolder, job: &ValidatedJob) -> bool {
    let Ok(text) = std::fs::read_to_string(folder.result()) else { return false };
    let Ok(result) = serde_json::from_str::<serde_json::Value>(&text) else { return false };
    let has_all = match job.spec().training.length {
        TrainingLength::Steps(steps) => result["step"].as_u64() >= Some(steps),
        // A result without epochs comes from an earlier release or from a job with a length in steps. It does
        // not count as complete, because only the data determines how many steps the epochs have.
        TrainingLength::Epochs(epochs) => {
            result["epochs"].as_u64() >= Some(epochs.into()) && result["step"] == result["num_steps"]
        }
    };
    result["outcome"] == "complete" && has_all
}

fn already_complete(folder: &RunFolder, channel: &StatusChannel) -> Result<ExitCode, TrainError> {
    found_result::report(folder, channel);
    report::render_at_end(folder.root());
    tracing::info!(
        "this run is complete already: {} (start afresh with --overwrite)",
        folder.root().display()
    );
    Ok(ExitCode::Success)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rlt_storage::run_folder::RunFolderError;
    use rlt_tests::tiny_job_with;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lock_that_was_waited_for_is_worth_another_attempt_and_another_run_is_not() {
        let code = |was_waited_for: bool| {
            let (path, holder) = ("/run".to_owned(), "attempt 1".to_owned());
            TrainError::RunFolder(RunFolderError::Busy { path, holder, was_waited_for }).exit_code()
        };
        assert_eq!([code(true), code(false)], [ExitCode::RetryableIo, ExitCode::BadConfig]);
    }

    #[test]
    fn a_pod_waits_three_minutes_for_a_held_lock_and_stops_waiting_when_it_is_asked_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let held = RunFolder::lock(folder.path()).unwrap();
        let (stop, time) = (StopRequest::never(), Cell::new(Duration::ZERO));
        let end_after = |limit: Duration| {
            time.set(Duration::ZERO);
            let wait = while_locked(limit, &stop, || time.get(), |pause| time.set(time.get() + pause));
            let error = RunFolder::lock_patiently(folder.path(), wait).unwrap_err();
            (TrainError::RunFolder(error).exit_code(), time.get())
        };
        assert_eq!(end_after(LOCK_TIMEOUT), (ExitCode::RetryableIo, Duration::from_secs(180)));
        assert_eq!(end_after(Duration::ZERO), (ExitCode::BadConfig, Duration::ZERO), "no pod");
        stop.request();
        assert_eq!(end_after(LOCK_TIMEOUT).1, Duration::ZERO);
        drop(held);
    }

    #[test]
    fn a_manifest_that_was_accepted_may_break_a_rule_of_a_later_release() {
        let hub = json!({ "repo": "owner/name", "endpoint": "https://user:word@mirror" });
        let model = json!({ "architecture": null, "tokenizer": null, "hub": hub });
        let with_password = tiny_job_with(json!({ "model": model })).to_string();
        assert!(parse(&with_password, true).is_ok());
        assert!(matches!(parse(&with_password, false), Err(TrainError::Manifest(_))));
    }

    #[test]
    fn a_setting_that_this_release_does_not_know_is_refused_in_a_pod_too() {
        let newer = tiny_job_with(json!({ "training": { "ofALaterRelease": 1 } })).to_string();
        for text in [newer.as_str(), "{}", "]"] {
            assert!(matches!(parse(text, true), Err(TrainError::Manifest(_))), "{text}");
        }
    }
}
