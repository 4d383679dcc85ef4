//! Processes of pods on a real node, from outside of their containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
