//! Containers of a real node from outside of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ends the first process of a pod's container from outside of it.
pub(crate) fn kill_container(pod_uid: &str) {
    let process = first_process(pod_uid);
    let killed = Command::new("kill").args(["-s", "KILL"]).arg(process.file_name().unwrap()).status();
    assert!(killed.unwrap().success());
}

/// The folder in `/proc` of the launcher in a pod.
pub(crate) fn first_process(pod_uid: &str) -> PathBuf {
    let is_it = |process: &Path| {
        let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
        read("cgroup").contains(pod_uid)
            && read("cmdline").contains("\0launch\0")
            && read("status").lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    let mut processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.find(|process| is_it(process)).unwrap()
}
