//! Restarts in place, for a pod that runs all ranks of its job: restarting its processes is seconds faster
//! than a new pod and keeps local volumes.
//!
//! A restart in place requires that every process of the failed attempt has ended and that another node would
//! not fix the cause. The operator limits the number by `RLT_RETRIES_LEFT`. Ranks report each restart with
//! its cause, and the termination message repeats the counts, so that the operator misses none.

use std::time::{Duration, Instant};

use rlt_api::failure::{AttemptProgress, restarts_line};
use rlt_api::spec::RetriesSpec;
use rlt_api::{ExitCode, FailureCause, ValidatedJob};
use rlt_channel::environment::RETRIES_LEFT;
use rlt_parallel::{RankEnvironment, RankError};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, test_kill_process_group,
    waitpgid,
};

use super::attempts::{newest_checkpoint, next, progress_since};
use super::budget::{Next, Restarts};
use super::{
    AttemptOutcome, Before, Children, Failed, LaunchError, StopSignal, grace_period, key, serve, text_of,
};
use crate::commands::worker::WorkerArgs;

/// Maximum time for killed process groups to end. Only a machine that stalls takes seconds.
const GROUP_PATIENCE: Duration = Duration::from_secs(20);
/// Interval of checks whether a process group has ended.
const POLL: Duration = Duration::from_millis(5);

/// Retries that the operator leaves to this pod; `None` if it may not restart its ranks, for example because
/// other pods run ranks of the job, too.
pub(super) fn retries_left(place: &RankEnvironment) -> Result<Option<RetriesSpec>, LaunchError> {
    let text = std::env::var(RETRIES_LEFT).ok().filter(|_| place.local_world_size == place.world_size);
    let read = |text: String| {
        serde_json::from_str(&text).map_err(|_| RankError::Environment {
            name: RETRIES_LEFT,
            expected: "the fields of spec.runPolicy.retries in JSON".to_owned(),
            got: format!("`{text}`"),
        })
    };
    Ok(text.map(read).transpose()?)
}

/// Runs the ranks and restarts them in place as long as `retries` allows.
pub(super) fn run(
    args: &WorkerArgs,
    job: &ValidatedJob,
    place: &RankEnvironment,
    retries: &RetriesSpec,
) -> Result<ExitCode, LaunchError> {
    let mut stop = StopSignal::listen(grace_period(job))?;
    adopt_orphans()?;
    let (manifest, root) = (text_of(job)?, args.root(job));
    let (mut args, mut place, mut before) = (args.clone(), place.clone(), Before::default());
    let mut budget = InPlaceBudget { restarts: Restarts::new(retries), is_second: false };
    place.key = Some(key::of_machine(&place)?);
    let mut store = serve(&place)?;
    loop {
        let (started, saved) = (Instant::now(), newest_checkpoint(&root));
        let children = Children::start(&args, &manifest, &place, &before)?.without_grace();
        let groups = children.groups();
        let failed = match children.watch(&mut stop, Some(&store))? {
            AttemptOutcome::Ended(code) => return Ok(code),
            AttemptOutcome::Failed(failed) => failed,
        };
        let progress = progress_since(&root, saved.as_deref(), started);
        let (cause, after) = match budget.after(&stop, &failed, progress) {
            Ok(_) if !are_gone(&groups) => {
                let hint =
                    "\n  not restarted in place: processes that ranks have started still run".to_owned();
                return Err(LaunchError::Rank { failed, hint: hint + &restarts_line(&before.restarts) });
            }
            Ok(next) => next,
            Err(hint) => {
                return Err(LaunchError::Rank { failed, hint: hint + &restarts_line(&before.restarts) });
            }
        };
        tracing::warn!("{failed}\nthe ranks are restarted in place from the last complete checkpoint");
        if stop.sleep(after) {
            return Ok(ExitCode::Preempted);
        }
        *before.restarts.entry(cause).or_default() += 1;
        args.overwrite = false;
        // Each attempt has a new store, which no late rank of the last attempt can join.
        place.master_port = 0;
        store = serve(&place)?;
        place.master_port = store.port();
    }
}

/// Budget of restarts in place.
struct InPlaceBudget {
    restarts: Restarts,
    /// Whether the last attempt was itself started by a restart in place.
    is_second: bool,
}

impl InPlaceBudget {
    /// Returns the cause that a restart in place counts for and the delay before it, or the reason why there
    /// is none.
    fn after(
        &mut self,
        stop: &StopSignal,
        failed: &Failed,
        progress: AttemptProgress,
    ) -> Result<(FailureCause, Duration), String> {
        let Some(cause) = failed.cause.filter(|cause| cause.restarts_in_place()) else {
            return Err(String::new());
        };
        let is_second = self.is_second && progress != AttemptProgress::Saved;
        if is_second && cause.may_be_the_nodes() {
            return Err("\n  not restarted in place a second time: another node may do better".to_owned());
        }
        self.is_second = true;
        match next(&mut self.restarts, stop, failed, progress) {
            Next::Restart { after, .. } => Ok((cause, after)),
            Next::End { why } => Err(why),
        }
    }
}

/// Makes this process the parent of the ranks' orphans, if it is not the first process of its pod
/// (`shareProcessNamespace`). Only a parent can reap a process, and a zombie counts as alive.
pub(super) fn adopt_orphans() -> Result<(), LaunchError> {
    set_child_subreaper(Some(getpid())).map_err(|error| LaunchError::Process {
        act: "become the parent of what ranks leave behind",
        source: error.into(),
    })
}

/// Kills the remaining processes of these process groups; returns whether all processes have ended.
pub(super) fn are_gone(groups: &[Pid]) -> bool {
    let until = Instant::now() + GROUP_PATIENCE;
    groups.iter().all(|group| {
        // The group may not exist anymore.
        let _ = kill_process_group(*group, Signal::KILL);
        loop {
            // This process is the parent of every orphan, and has to reap it.
            while let Ok(Some(_)) = waitpgid(*group, WaitOptions::NOHANG) {}
            if test_kill_process_group(*group).is_err() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn failed(cause: FailureCause) -> Failed {
        Failed {
            rank: 1,
            how: String::new(),
            other_ends: Vec::new(),
            code: ExitCode::PeerLost,
            cause: Some(cause),
        }
    }

    #[test]
    fn a_cause_that_another_node_may_mend_is_restarted_in_place_once_without_a_new_checkpoint() {
        let stop = StopSignal::listen(Duration::ZERO).unwrap();
        let retries = RetriesSpec { crash: 100, ..RetriesSpec::default() };
        let mut budget = InPlaceBudget { restarts: Restarts::new(&retries), is_second: false };
        let mut after = |cause, progress| budget.after(&stop, &failed(cause), progress).is_ok();
        assert!(!after(FailureCause::DeviceFailed, AttemptProgress::Lived));
        assert!(after(FailureCause::Signalled, AttemptProgress::Lived));
        assert!(after(FailureCause::Signalled, AttemptProgress::Saved));
        assert!(after(FailureCause::PeerLost, AttemptProgress::Lived), "not a node's fault");
        assert!(!after(FailureCause::Signalled, AttemptProgress::Lived));
    }

    #[test]
    fn a_leftover_process_of_a_rank_is_killed_before_the_next_attempt() {
        // The test reaps orphans itself, as a launcher does: the first process of a machine may take longer
        // to reap them than the launcher waits.
        adopt_orphans().unwrap();
        let mut rank = Command::new("sh")
            .args(["-c", "sleep 300 & echo started; sleep 300"])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 7];
        rank.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let group = Pid::from_raw(i32::try_from(rank.id()).unwrap()).unwrap();
        rank.kill().unwrap();
        rank.wait().unwrap();
        assert!(test_kill_process_group(group).is_ok(), "its own child lives on");
        assert!(are_gone(&[group]));
        assert!(test_kill_process_group(group).is_err());
    }
}
