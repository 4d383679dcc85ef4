//! The workers as processes: started, signalled, waited for. What their ends mean is judged in [`super::verdict`].

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rlt_api::TERMINATION_MESSAGE_VARIABLE;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use super::{End, LAUNCHED_VARIABLE, LaunchError, Verdict, last_words};
use crate::parallel::RankEnvironment;
use crate::worker::WorkerArgs;

/// Between two looks at the workers.
const POLL: Duration = Duration::from_millis(20);

/// The workers of this machine. Whoever still runs when this is dropped is killed.
pub(super) struct Children {
    running: Vec<(usize, Child)>,
    ends: Vec<End>,
    signals: Signals,
    folder: TempDir,
}

impl Children {
    /// Starts a worker for every rank of `place`, all on one copy of the manifest: standard input can be read only once,
    /// and a file may change.
    pub(super) fn start(
        args: &WorkerArgs,
        manifest: &str,
        place: &RankEnvironment,
    ) -> Result<Self, LaunchError> {
        // Before the first worker: a signal is handed on, or ends this process before there is anything to end.
        let signals = Signals::new([SIGTERM, SIGINT]).map_err(failed("listen for signals"))?;
        let folder = tempfile::tempdir().map_err(failed("make a folder for the ranks"))?;
        let program = std::env::current_exe().map_err(failed("find the trainer's own file"))?;
        let own_manifest = folder.path().join("manifest.yaml");
        fs::write(&own_manifest, manifest).map_err(failed("write the ranks' manifest"))?;
        let mut children = Self { running: Vec::new(), ends: Vec::new(), signals, folder };
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
            command.env(LAUNCHED_VARIABLE, "1");
            command.env(TERMINATION_MESSAGE_VARIABLE, last_words(children.folder.path(), rank));
            // A terminal's Ctrl-C reaches a worker once, through this process.
            command.process_group(0);
            children.running.push((rank, command.spawn().map_err(failed("start a worker"))?));
        }
        Ok(children)
    }

    /// Waits for all, hands signals on to all, and ends them all `grace` after one has failed.
    pub(super) fn watch(mut self, grace: Duration) -> Result<Verdict, LaunchError> {
        let mut deadline = None;
        while !self.running.is_empty() {
            if self.signals.pending().next().is_some() {
                self.signal(Signal::TERM);
            }
            self.collect()?;
            if deadline.is_none() && matches!(Verdict::of(&self.ends), Verdict::Failed { .. }) {
                deadline = Some(Instant::now() + grace);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.end_all()?;
            }
            sleep(POLL);
        }
        Ok(Verdict::of(&self.ends))
    }

    fn signal(&self, signal: Signal) {
        for (rank, child) in &self.running {
            let sent = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(Err(error)) = sent.map(|pid| kill_process(pid, signal)) {
                tracing::warn!(rank, %error, "a signal could not be handed on");
            }
        }
    }

    /// Moves the workers that have ended from those that run.
    fn collect(&mut self) -> Result<(), LaunchError> {
        let mut still = Vec::new();
        for (rank, mut child) in self.running.drain(..) {
            match child.try_wait().map_err(failed("wait for a worker"))? {
                None => still.push((rank, child)),
                Some(status) => self.ends.push(End {
                    rank,
                    code: status.code(),
                    signal: status.signal(),
                    words: fs::read_to_string(last_words(self.folder.path(), rank)).ok(),
                    is_ours: false,
                }),
            }
        }
        self.running = still;
        Ok(())
    }

    fn end_all(&mut self) -> Result<(), LaunchError> {
        for (rank, mut child) in self.running.drain(..) {
            child.kill().and_then(|()| child.wait()).map_err(failed("end a worker"))?;
            self.ends.push(End { rank, code: None, signal: None, words: None, is_ours: true });
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        if let Err(error) = self.end_all() {
            tracing::warn!(%error, "a worker may still run");
        }
    }
}

fn failed(act: &'static str) -> impl FnOnce(std::io::Error) -> LaunchError {
    move |source| LaunchError::Process { act, source }
}
