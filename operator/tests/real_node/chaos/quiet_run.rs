//! The undisturbed run beside which a chaos run is held. It follows the job while that is disturbed, so that
//! little is left to train at the end.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::manifests::training;
use crate::folder::Folder;

/// Output of the run in its folder.
pub(super) const OUTPUT: &str = "runs/quiet";
/// Steps that the job must be ahead before the run continues; each continuation starts all ranks anew.
const MIN_STEPS: u64 = 200;
/// Program that starts another one with the smallest share of the cores, so that the job keeps its own. The
/// share is that of the session, which is a new one.
const BACKGROUND: [&str; 4] =
    ["setsid", "sh", "-c", r#"{ echo 19 >/proc/$$/autogroup; } 2>/dev/null; exec nice -n 19 "$0" "$@""#];

/// A step of the job that the run is told.
enum Goal {
    /// The job has saved this step; more follow.
    Saved(u64),
    /// The job has ended with this step.
    Last(u64),
}

/// An undisturbed run on this machine that trains no more steps than the job has saved.
pub(super) struct QuietRun {
    goals: Sender<Goal>,
    thread: JoinHandle<Folder>,
}

impl QuietRun {
    /// Prepares the run in a folder of its own, on a disk that is not filled, from the model of `source`.
    pub(super) fn new(path: &Path, source: &Folder) -> Self {
        let folder = Folder::at(path.to_owned());
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(source.path().join("runs/sft")).arg(path.join("runs"));
        assert!(copy.status().unwrap().success());
        let (goals, heard) = channel();
        Self { goals, thread: thread::spawn(move || follow(folder, &heard)) }
    }

    /// Lets the run train up to a step that the job has saved.
    pub(super) fn follow(&self, saved: u64) {
        // A run that has failed is noticed at its end.
        let _ = self.goals.send(Goal::Saved(saved));
    }

    /// Lets the run train up to the job's last step, and returns its folder.
    pub(super) fn finish(self, num_steps: u64) -> Folder {
        let _ = self.goals.send(Goal::Last(num_steps));
        self.thread.join().unwrap()
    }
}

/// Continues the run as often as the job is far enough ahead, until it has the job's last step.
fn follow(folder: Folder, goals: &Receiver<Goal>) -> Folder {
    let mut num_done = 0;
    loop {
        // All that was told while the run was training; the last one counts.
        let Some(goal) = goals.recv().ok().map(|first| goals.try_iter().last().unwrap_or(first)) else {
            return folder;
        };
        match goal {
            Goal::Saved(saved) if saved >= num_done + MIN_STEPS => {
                folder.run_by(&BACKGROUND, &training(saved), OUTPUT);
                num_done = saved;
            }
            Goal::Saved(_) => {}
            Goal::Last(num_steps) => {
                folder.run(&training(num_steps), OUTPUT);
                return folder;
            }
        }
    }
}
