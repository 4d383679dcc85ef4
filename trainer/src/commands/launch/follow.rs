//! Pods that may be assigned to another attempt: the launcher polls the operator for the pod's attempt, and
//! restarts its ranks in place.
//!
//! ```text
//! environment or waiting spare -> ranks run -> ranks have ended, or another attempt has begun
//!     -> all processes have ended -> report to the operator -> it assigns attempt, ranks and rendezvous
//! ```
//! Every process of an attempt ends, and the launcher reports that, before it starts a rank of the next
//! attempt. The launcher exits if it cannot ensure that, if a failure cannot be fixed by a retry, or if the
//! operator does not answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlt_api::{Budget, ExitCode, ValidatedJob};
use rlt_channel::client::{Follower, Settings};
use rlt_channel::environment::{FOLLOW, FOLLOWS_RANKS, FOLLOWS_SPARE};
use rlt_channel::{Assignment, Ending, Outcome, limits};
use rlt_parallel::{RankEnvironment, RankError};

use super::in_place::{adopt_orphans, are_gone};
use super::key::{self, Requested};
use super::{
    AttemptOutcome, Before, Children, Failed, LaunchError, StopSignal, check, grace_period, serve, text_of,
};
use crate::commands::worker::WorkerArgs;
use crate::run::prefetch;

/// Maximum time that a pod without ranks waits for an answer of the operator. A spare waits without limit.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of polls for the operator's newest answer.
const POLL: Duration = Duration::from_millis(20);

/// Whether the operator may assign this pod to another attempt. That requires a channel to the operator,
/// except for a spare, which always waits.
pub(super) fn is_asked_for(place: Option<&RankEnvironment>) -> bool {
    let has_operator = std::env::var_os(rlt_channel::environment::ADDRESS).is_some();
    match (std::env::var(FOLLOW).as_deref(), place) {
        (Ok(FOLLOWS_RANKS), Some(_)) => has_operator,
        (Ok(FOLLOWS_SPARE), None) => true,
        _ => false,
    }
}

/// Decision after an attempt.
enum Next {
    /// The launcher runs these ranks.
    Ranks(RankEnvironment),
    /// The launcher ends: the job has ended, or the operator does not answer.
    Nothing,
    /// The launcher ends: a signal requested it.
    Stopped,
}

/// End of an attempt of this pod.
enum AttemptEnd {
    /// No other attempt follows.
    Final(ExitCode),
    /// Another attempt may follow; with the failure, if there was one.
    Pausing(ExitCode, Option<Box<Failed>>),
}

/// Runs attempts as the operator assigns them.
pub(super) fn run(
    args: &WorkerArgs,
    job: &ValidatedJob,
    first: Option<RankEnvironment>,
) -> Result<ExitCode, LaunchError> {
    let stop = StopSignal::listen(grace_period(job))?;
    adopt_orphans()?;
    let follower = follower()?;
    let (args, manifest) = (args.clone(), text_of(job)?);
    let mut pod = Pod { job, args, manifest, follower, stop, is_spare: first.is_none() };
    let mut next = match first {
        Some(place) => Next::Ranks(place),
        None => pod.wait_as_spare()?,
    };
    let mut last = Ok(ExitCode::Success);
    loop {
        let place = match next {
            Next::Ranks(place) => place,
            Next::Nothing => return last,
            Next::Stopped => return Ok(ExitCode::Preempted),
        };
        last = match pod.attempt(&place)? {
            AttemptEnd::Final(code) => return Ok(code),
            AttemptEnd::Pausing(code, None) => Ok(code),
            AttemptEnd::Pausing(_, Some(failed)) => Err(LaunchError::Rank { failed, hint: String::new() }),
        };
        next = pod.next(place.attempt)?;
    }
}

/// Connects to the operator's status channel.
fn follower() -> Result<Follower, LaunchError> {
    let settings = Settings::from_environment(|name| std::env::var(name).ok());
    let settings = settings.ok().flatten().ok_or_else(|| RankError::Environment {
        name: FOLLOW,
        expected: "nothing where the operator serves no status channel".to_owned(),
        got: std::env::var(FOLLOW).unwrap_or_default(),
    })?;
    Follower::start(settings).map_err(|source| LaunchError::Process { act: "start a thread", source })
}

/// This pod and its state across attempts.
struct Pod<'a> {
    job: &'a ValidatedJob,
    args: WorkerArgs,
    manifest: String,
    follower: Follower,
    stop: StopSignal,
    /// Whether the pod has not been assigned ranks yet.
    is_spare: bool,
}

impl Pod<'_> {
    /// Preloads models and libraries while the pod waits for ranks.
    fn wait_as_spare(&mut self) -> Result<Next, LaunchError> {
        let (follower, spec) = (self.follower.clone(), self.job.spec().clone());
        let folder = self.args.root(self.job);
        let load = move || match prefetch::prefetch(&spec, &folder) {
            Ok(bytes) => {
                tracing::info!(
                    megabytes = bytes >> 20,
                    "this spare waits; models and libraries are preloaded"
                );
                follower.is_loaded();
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "this spare waits; preloading failed"
                );
            }
        };
        let started = std::thread::Builder::new().name("prefetch".into()).spawn(load);
        started.map_err(|source| LaunchError::Process { act: "start a thread", source })?;
        self.next(0)
    }

    /// Runs the ranks of an attempt. If it returns [`AttemptEnd::Pausing`], none of their processes is left.
    fn attempt(&mut self, place: &RankEnvironment) -> Result<AttemptEnd, LaunchError> {
        check(place)?;
        self.is_spare = false;
        let attempt = u32::try_from(place.attempt).unwrap_or(u32::MAX);
        self.follower.started(attempt, u32::try_from(place.rank).unwrap_or(u32::MAX));
        let place = &match self.key(place)? {
            Requested::Key(key) => RankEnvironment { key, ..place.clone() },
            Requested::Stopped => return Ok(AttemptEnd::Final(ExitCode::Preempted)),
        };
        let store = (place.rank == 0).then(|| serve(place)).transpose()?;
        let children =
            Children::start(&self.args, &self.manifest, place, &Before::default())?.without_grace();
        let groups = children.groups();
        let follower = &self.follower;
        let is_current = || follower.answer().attempt <= attempt;
        let outcome = children.watch_current(&mut self.stop, store.as_ref(), &is_current)?;
        drop(store);
        self.args.overwrite = false;
        let (code, failed) = match outcome {
            Some(AttemptOutcome::Ended(code)) if code == ExitCode::Success || self.stop.is_asked_for() => {
                return Ok(AttemptEnd::Final(code));
            }
            Some(AttemptOutcome::Ended(code)) => (code, None),
            Some(AttemptOutcome::Failed(failed)) if self.stop.is_asked_for() || !self.may_pass(&failed) => {
                return Err(LaunchError::Rank { failed, hint: String::new() });
            }
            Some(AttemptOutcome::Failed(failed)) => (failed.code, Some(failed)),
            None => (ExitCode::Preempted, None),
        };
        if !are_gone(&groups) {
            return Err(match failed {
                Some(failed) => LaunchError::Rank {
                    failed,
                    hint: "\n  not started again in this pod: processes that ranks have started still run"
                        .to_owned(),
                },
                None => LaunchError::Remains { attempt: place.attempt },
            });
        }
        if let Some(failed) = &failed {
            tracing::warn!(
                "{failed}\nno process of attempt {attempt} is left; the pod waits for the next one"
            );
        }
        self.follower.ended(ending(code, failed.as_deref()));
        Ok(AttemptEnd::Pausing(code, failed))
    }

    /// Returns the key of an attempt. If other pods have ranks, too, the operator is asked for the key.
    fn key(&mut self, place: &RankEnvironment) -> Result<Requested, LaunchError> {
        if place.is_local() || place.key.is_some() {
            return key::of_place(place, &mut self.stop);
        }
        key::of_operator(&self.follower, place, &mut self.stop, key::TIMEOUT)
    }

    /// Whether another attempt may follow this failure.
    fn may_pass(&self, failed: &Failed) -> bool {
        let retries = &self.job.spec().run_policy.retries;
        failed.cause.is_some_and(|cause| cause.budget(retries) != Budget::Never)
    }

    /// Waits until ranks of an attempt after `last` are assigned.
    fn next(&mut self, last: u64) -> Result<Next, LaunchError> {
        loop {
            let answer = self.follower.answer();
            if let Some(new) = answer.assignment.filter(|new| u64::from(new.attempt) > last) {
                let place = self.place(new)?;
                tracing::info!(
                    attempt = place.attempt,
                    first_rank = place.rank,
                    "this pod was assigned ranks"
                );
                return Ok(Next::Ranks(place));
            }
            let is_left_alone = !self.is_spare && self.follower.silence() > PATIENCE;
            if answer.is_over || is_left_alone {
                return Ok(Next::Nothing);
            }
            if self.stop.sleep(POLL) {
                return Ok(Next::Stopped);
            }
        }
    }

    /// Returns the environment of assigned ranks. The job determines their number.
    fn place(&self, new: Assignment) -> Result<RankEnvironment, LaunchError> {
        let workers = &self.job.spec().workers;
        let wrong = |got: String| RankError::Environment {
            name: "MASTER_PORT",
            expected: "a port from 1 to 65535 from the operator".to_owned(),
            got,
        };
        let port = u16::try_from(new.master_port).ok().filter(|port| *port > 0);
        Ok(RankEnvironment {
            rank: new.first_rank as usize,
            world_size: workers.num_ranks() as usize,
            local_world_size: workers.ranks_per_worker as usize,
            master_address: new.master_address,
            master_port: port.ok_or_else(|| wrong(new.master_port.to_string()))?,
            attempt: new.attempt.into(),
            key: None,
        })
    }
}

/// Returns the report of an attempt whose processes have all ended.
fn ending(code: ExitCode, failed: Option<&Failed>) -> Ending {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let words =
        failed.map_or_else(|| "the ranks stopped and saved a checkpoint".to_owned(), Failed::to_string);
    let outcome = if failed.is_some() { Outcome::Failed } else { Outcome::Stopped };
    Ending {
        outcome: outcome.into(),
        exit_code: code.code().into(),
        message: limits::shortened(&words, limits::MAX_MESSAGE_BYTES).to_owned(),
        time_ms: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
    }
}
