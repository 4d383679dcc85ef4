//! Containers of a real node from outside of them.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{kill, of_pod, read};

/// Ends the first process of a pod's container from outside of it.
pub(crate) fn kill_container(pod_uid: &str) {
    assert!(kill(&first_process(pod_uid)));
}

/// The folder in `/proc` of the launcher in a pod; `None` if it has not begun, or has ended.
pub(crate) fn launcher(pod_uid: &str) -> Option<PathBuf> {
    let launches = |process: &PathBuf| {
        let (command, status) = (read(process, "cmdline"), read(process, "status"));
        command.contains("\0launch\0")
            && status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    of_pod(pod_uid).into_iter().find(launches)
}

/// The folder in `/proc` of the launcher in a pod. Waits for it: the node says that a container runs when
/// its first process was asked to execute the image's program, which on a loaded machine is before it does.
pub(crate) fn first_process(pod_uid: &str) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(launcher) = launcher(pod_uid) {
            return launcher;
        }
        let commands: Vec<_> = of_pod(pod_uid).iter().map(|process| read(process, "cmdline")).collect();
        assert!(Instant::now() < deadline, "pod {pod_uid} has no launcher, it has {commands:?}");
        thread::sleep(Duration::from_millis(100));
    }
}
