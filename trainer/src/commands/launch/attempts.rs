//! Attempts of a job whose ranks are all on this machine, each from the last complete checkpoint, as long as
//! `runPolicy.retries` allows. The budget by cause is in [`super::budget`].

use std::path::Path;
use std::time::{Duration, Instant};

use rlt_api::failure::AttemptProgress;
use rlt_api::{ExitCode, ValidatedJob};
use rlt_parallel::RankEnvironment;
use rlt_storage::checkpoint::CheckpointStore;

use super::budget::{Next, Restarts};
use super::{
    AttemptOutcome, Before, Children, Failed, LaunchError, StopSignal, grace_period, key, serve, text_of,
};
use crate::commands::worker::{self, WorkerArgs};

/// Runs attempts until one ends without a failure, a signal requests the end, or a failure may not be
/// retried.
pub(super) fn run(args: &WorkerArgs, job: &ValidatedJob) -> Result<ExitCode, LaunchError> {
    let mut stop = StopSignal::listen(grace_period(job))?;
    let root = args.root(job);
    let args = start_afresh_once(args, &root, job)?;
    let manifest = text_of(job)?;
    let mut restarts = Restarts::new(&job.spec().run_policy.retries);
    let launched = Instant::now();
    let mut attempt = 1;
    loop {
        let (started, saved) = (Instant::now(), newest_checkpoint(&root));
        let count = job.spec().workers.num_ranks() as usize;
        // Each attempt has a new store with its own attempt number and key, so that a leftover rank of an
        // earlier attempt cannot join it.
        let mut place = all_here(attempt, count);
        place.key = Some(key::of_machine(&place)?);
        let store = serve(&place)?;
        place.master_port = store.port();
        let before = Before { spent: launched.elapsed(), ..Before::default() };
        let children = Children::start(&args, &manifest, &place, &before)?;
        let failed = match children.watch(&mut stop, Some(&store))? {
            AttemptOutcome::Ended(code) => return Ok(code),
            AttemptOutcome::Failed(failed) => failed,
        };
        let progress = progress_since(&root, saved.as_deref(), started);
        let after = match next(&mut restarts, &stop, &failed, progress) {
            Next::Restart { after, budget } => {
                announce(attempt, &failed, after, &budget);
                after
            }
            Next::End { why } => return Err(LaunchError::Rank { failed, hint: why }),
        };
        if stop.sleep(after) {
            // The next run resumes from the last checkpoint.
            return Ok(ExitCode::Preempted);
        }
        attempt += 1;
    }
}

/// Returns the progress of an attempt that began at `started`, when `saved` was the newest checkpoint.
pub(super) fn progress_since(root: &Path, saved: Option<&str>, started: Instant) -> AttemptProgress {
    AttemptProgress::of(newest_checkpoint(root).as_deref() != saved, started.elapsed())
}

pub(super) fn next(
    restarts: &mut Restarts,
    stop: &StopSignal,
    failed: &Failed,
    progress: AttemptProgress,
) -> Next {
    match failed.cause {
        Some(cause) if !stop.is_asked_for() => restarts.after(cause, progress),
        _ => Next::End { why: String::new() },
    }
}

/// Removes the files of an earlier run if requested. This happens only before the first attempt.
fn start_afresh_once(args: &WorkerArgs, root: &Path, job: &ValidatedJob) -> Result<WorkerArgs, LaunchError> {
    if args.overwrite {
        worker::start_afresh(root, job).map_err(Box::new)?;
    }
    Ok(WorkerArgs { overwrite: false, ..args.clone() })
}

/// Returns the environment of ranks that are all on this machine, with any free port.
fn all_here(attempt: u64, count: usize) -> RankEnvironment {
    RankEnvironment {
        rank: 0,
        world_size: count,
        local_world_size: count,
        master_address: "localhost".to_owned(),
        master_port: 0,
        attempt,
        key: None,
    }
}

/// Returns the digest of the checkpoint that a new attempt would continue from.
pub(super) fn newest_checkpoint(root: &Path) -> Option<String> {
    let committed = CheckpointStore::follow(&root.join("checkpoints")).committed().ok()?;
    committed.into_iter().next_back().map(|checkpoint| checkpoint.digest)
}

fn announce(attempt: u64, failed: &Failed, after: Duration, budget: &str) {
    let when = match after.as_secs() {
        0 => "now".to_owned(),
        seconds => format!("in {seconds} s"),
    };
    tracing::warn!(
        "attempt {attempt} failed: {failed}\nattempt {} begins {when} from the last complete checkpoint ({budget})",
        attempt + 1
    );
}
