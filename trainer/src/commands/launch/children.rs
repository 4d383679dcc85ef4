//! Ranks as child processes: starts them, forwards signals, and waits for them. Their exits are classified in
//! [`super::outcome`].

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rlt_api::{ExitCode, FailureCause, TERMINATION_MESSAGE_VARIABLE};
use rlt_channel::environment;
use rlt_parallel::RankEnvironment;
use rlt_torch::collectives::{Store, report_failure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::outcome::Cut;
use super::{AttemptOutcome, End, LAUNCHER_VARIABLE, LaunchError, SPENT_VARIABLE, StopSignal, last_words};
use crate::commands::termination;
use crate::commands::worker::WorkerArgs;

/// Interval of polls for exits.
const POLL: Duration = Duration::from_millis(20);
/// Grace period of the other ranks after the exit of a rank with a specific cause, so that they report their
/// own errors.
const GRACE_WITH_CAUSE: Duration = Duration::from_secs(1);
/// Grace period of the other ranks after the exit of a rank that has lost a peer: long enough for all to
/// notice and to report which peer is missing, which takes them up to five seconds.
const GRACE_WITHOUT_CAUSE: Duration = Duration::from_secs(8);

/// Ranks of this machine. Dropping the value kills the ranks that still run.
pub(super) struct Children {
    running: Vec<(usize, Child)>,
    ends: Vec<End>,
    folder: TempDir,
    /// Process group of each worker.
    groups: Vec<Pid>,
    /// Grace period of the other ranks after the exit of a rank with a specific cause.
    grace_with_cause: Duration,
}

/// History before an attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    /// Time of the earlier attempts.
    pub(super) spent: Duration,
    /// Number of restarts in place by cause.
    pub(super) restarts: BTreeMap<FailureCause, u32>,
}

impl Children {
    /// Starts a worker for every rank of `place`. All read one copy of the manifest, because standard input
    /// can be read only once, and a file may change.
    pub(super) fn start(
        args: &WorkerArgs,
        manifest: &str,
        place: &RankEnvironment,
        before: &Before,
    ) -> Result<Self, LaunchError> {
        let folder = tempfile::tempdir().map_err(failed("make a folder for the ranks"))?;
        let program = std::env::current_exe().map_err(failed("find the trainer's own file"))?;
        let own_manifest = folder.path().join("manifest.yaml");
        fs::write(&own_manifest, manifest).map_err(failed("write the ranks' manifest"))?;
        let mut children = Self {
            running: Vec::new(),
            ends: Vec::new(),
            folder,
            groups: Vec::new(),
            grace_with_cause: GRACE_WITH_CAUSE,
        };
        let restarts = serde_json::to_string(&before.restarts).unwrap_or_default();
        for local_rank in 0..place.local_world_size {
            let rank = place.rank + local_rank;
            let mut command = Command::new(&program);
            command.arg("worker").arg("--manifest").arg(&own_manifest);
            if let Some(output) = &args.output {
                command.arg("--output").arg(output);
            }
            if args.overwrite {
                command.arg("--overwrite");
            }
            command.envs(place.variables(local_rank));
            if let Some(followed) = rlt_traces::traceparent(&tracing::Span::current()) {
                command.env(rlt_traces::TRACEPARENT, followed);
            }
            command.env(LAUNCHER_VARIABLE, std::process::id().to_string());
            command.env(SPENT_VARIABLE, before.spent.as_secs().to_string());
            command.env(environment::RESTARTS, &restarts);
            command.env(TERMINATION_MESSAGE_VARIABLE, last_words(children.folder.path(), rank));
            // Ctrl-C in a terminal then reaches a worker once, through this process.
            command.process_group(0);
            let child = command.spawn().map_err(failed("start a worker"))?;
            children.groups.extend(i32::try_from(child.id()).ok().and_then(Pid::from_raw));
            children.running.push((rank, child));
        }
        Ok(children)
    }

    /// Kills the other ranks at once after the exit of a rank with a specific cause. That costs nothing if
    /// they are restarted: every step since the last checkpoint is repeated, and a checkpoint in flight is
    /// committed or not.
    pub(super) fn without_grace(mut self) -> Self {
        self.grace_with_cause = Duration::ZERO;
        self
    }

    /// Process groups of all ranks; each also contains the children of its rank.
    pub(super) fn groups(&self) -> Vec<Pid> {
        self.groups.clone()
    }

    /// Waits for all ranks. Forwards stop signals, kills ranks that exceed the grace period, and ends all
    /// soon after one has failed. Ranks that are still joining learn of a failure from `store`.
    pub(super) fn watch(
        mut self,
        stop: &mut StopSignal,
        store: Option<&Store>,
    ) -> Result<AttemptOutcome, LaunchError> {
        self.watch_while(stop, store, &|| true)?;
        Ok(self.outcome())
    }

    /// Waits as [`Self::watch`] does; returns `None` if all ranks were killed because another attempt has
    /// started.
    pub(super) fn watch_current(
        mut self,
        stop: &mut StopSignal,
        store: Option<&Store>,
        is_current: &dyn Fn() -> bool,
    ) -> Result<Option<AttemptOutcome>, LaunchError> {
        let is_over = self.watch_while(stop, store, is_current)?;
        Ok(is_over.then(|| self.outcome()))
    }

    /// Classifies the ends of all ranks. If all have finished, the termination message of rank 0 becomes that
    /// of this process, which Kubernetes shows in the status of the pod.
    fn outcome(&self) -> AttemptOutcome {
        let outcome = AttemptOutcome::of(&self.ends);
        let message = self.ends.iter().find_map(|end| end.words.as_deref());
        if let (AttemptOutcome::Ended(ExitCode::Success), Some(message)) = (&outcome, message) {
            termination::write(message);
        }
        outcome
    }

    /// Waits until all ranks have ended; returns false if they were killed because they are no longer
    /// current.
    fn watch_while(
        &mut self,
        stop: &mut StopSignal,
        store: Option<&Store>,
        is_current: &dyn Fn() -> bool,
    ) -> Result<bool, LaunchError> {
        let mut first_end = None;
        while !self.running.is_empty() {
            if !is_current() {
                self.end_all(Cut::AfterAnother)?;
                return Ok(false);
            }
            if stop.has_come() {
                self.signal(Signal::TERM);
            }
            self.collect(stop.is_asked_for())?;
            if self.ends.iter().any(End::ends_all) {
                let since = *first_end.get_or_insert_with(|| {
                    self.tell_cause(store);
                    Instant::now()
                });
                if since.elapsed() >= self.grace() {
                    self.end_all(Cut::AfterAnother)?;
                }
            } else if let Some(grace) = stop.expired_grace() {
                self.end_all(Cut::TooLate(grace))?;
            }
            sleep(POLL);
        }
        Ok(true)
    }

    fn grace(&self) -> Duration {
        if self.ends.iter().any(End::is_cause) { self.grace_with_cause } else { GRACE_WITHOUT_CAUSE }
    }

    fn tell_cause(&self, store: Option<&Store>) {
        if let (Some(store), Some(end)) = (store, self.ends.iter().find(|end| end.is_cause()))
            && let Err(error) = report_failure(store, end.rank, &end.how())
        {
            tracing::debug!(%error, "failed to report the failure to ranks still joining; they notice it later");
        }
    }

    fn signal(&self, signal: Signal) {
        for (rank, child) in &self.running {
            let sent = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(Err(error)) = sent.map(|pid| kill_process(pid, signal)) {
                tracing::warn!(rank, %error, "failed to forward a signal");
            }
        }
    }

    /// Moves the workers that have ended from `running` to `ends`.
    fn collect(&mut self, is_stopping: bool) -> Result<(), LaunchError> {
        let mut still = Vec::new();
        for (rank, mut child) in self.running.drain(..) {
            match child.try_wait().map_err(failed("wait for a worker"))? {
                None => still.push((rank, child)),
                Some(status) => {
                    let (code, signal) = (status.code(), status.signal());
                    let words = fs::read_to_string(last_words(self.folder.path(), rank)).ok();
                    let cut = if is_stopping { Cut::by_signal(code, signal) } else { Cut::Not };
                    self.ends.push(End { rank, code, signal, words, cut });
                }
            }
        }
        self.running = still;
        Ok(())
    }

    fn end_all(&mut self, cut: Cut) -> Result<(), LaunchError> {
        for (rank, mut child) in self.running.drain(..) {
            child.kill().and_then(|()| child.wait()).map_err(failed("end a worker"))?;
            self.ends.push(End { rank, code: None, signal: None, words: None, cut });
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        if let Err(error) = self.end_all(Cut::AfterAnother) {
            tracing::warn!(%error, "a worker may still run");
        }
    }
}

fn failed(act: &'static str) -> impl FnOnce(std::io::Error) -> LaunchError {
    move |source| LaunchError::Process { act, source }
}
