//! Containers of a real node from outside of them.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{kill, of_pod, read};

/// Ends the first process of a pod's container from outside of it.
pub(crate) fn kill_container(pod_uid: &str) {
    assert!(kill(&first_process(pod_uid)));
}

/// The folder in `/proc` of the launcher in a pod. Waits for it: the node says that a container runs when
/// its first process was asked to execute the image's program, which on a loaded machine is before it does.
pub(crate) fn first_process(pod_uid: &str) -> PathBuf {
    let launches = |process: &PathBuf| {
        let (command, status) = (read(process, "cmdline"), read(process, "status"));
        command.contains("\0launch\0")
            && status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let processes = of_pod(pod_uid);
        if let Some(launcher) = processes.iter().find(|process| launches(process)) {
            return launcher.clone();
        }
        let commands: Vec<_> = processes.iter().map(|process| read(process, "cmdline")).collect();
        assert!(Instant::now() < deadline, "pod {pod_uid} has no launcher, it has {commands:?}");
        thread::sleep(Duration::from_millis(100));
    }
}
