//! Processes of pods on a real node, from outside of their containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ends a rank of a pod by SIGKILL; `false` when it has no process.
pub(crate) fn kill_rank(pod_uid: &str, rank: usize) -> bool {
    let variable = format!("RANK={rank}");
    let is_rank = |process: &&PathBuf| {
        read(process, "cmdline").contains("\0worker\0")
            && read(process, "environ").split('\0').any(|one| one == variable)
    };
    of_pod(pod_uid).iter().find(is_rank).is_some_and(|process| kill(process))
}

/// The folders in `/proc` of a pod's processes.
pub(crate) fn of_pod(pod_uid: &str) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter(|process| read(process, "cgroup").contains(pod_uid)).collect()
}

/// A file of a process's folder in `/proc`; empty when the process has ended.
pub(crate) fn read(process: &Path, name: &str) -> String {
    let bytes = fs::read(process.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ends a process by SIGKILL; `false` when it had ended.
pub(crate) fn kill(process: &Path) -> bool {
    let id = process.file_name().unwrap();
    Command::new("kill").args(["-s", "KILL"]).arg(id).status().unwrap().success()
}
