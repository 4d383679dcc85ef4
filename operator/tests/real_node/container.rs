//! Containers of a real node from outside of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Ends the first process of a pod's container from outside of it.
pub(crate) fn kill_container(pod_uid: &str) {
    let process = first_process(pod_uid);
    let killed = Command::new("kill").args(["-s", "KILL"]).arg(process.file_name().unwrap()).status();
    assert!(killed.unwrap().success());
}

/// The folder in `/proc` of the launcher in a pod. Waits for it: the node says that a container runs when
/// its first process was asked to execute the image's program, which on a loaded machine is before it does.
pub(crate) fn first_process(pod_uid: &str) -> PathBuf {
    let read = |process: &Path, name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let launches = |process: &PathBuf| {
        let (command, status) = (read(process, "cmdline"), read(process, "status"));
        command.contains("\0launch\0")
            && status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let of_pod: Vec<_> = processes.filter(|process| read(process, "cgroup").contains(pod_uid)).collect();
        if let Some(launcher) = of_pod.iter().find(|process| launches(process)) {
            return launcher.clone();
        }
        let commands: Vec<_> = of_pod.iter().map(|process| read(process, "cmdline")).collect();
        assert!(Instant::now() < deadline, "pod {pod_uid} has no launcher, it has {commands:?}");
        thread::sleep(Duration::from_millis(100));
    }
}
