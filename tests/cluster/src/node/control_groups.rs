//! The node's control groups: one below the cluster's name for each controller, or one for all where they are
//! unified.

use std::fs;
use std::path::Path;

use super::{NodeError, make_folder};

const ROOT: &str = "/sys/fs/cgroup";

/// Makes the groups in which the kubelet makes those of pods.
pub(crate) fn make(name: &str) -> Result<(), NodeError> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return make_folder(&Path::new(ROOT).join(name));
    }
    for controller in [
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "devices",
        "freezer",
        "blkio",
        "pids",
        "systemd",
        "hugetlb",
        "net_cls",
        "net_prio",
        "perf_event",
    ] {
        let root = Path::new(ROOT).join(controller);
        if root.exists() {
            make_folder(&root.join(name))?;
        }
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = Path::new(ROOT).join("cpuset").join(name).join(file);
        let copied =
            fs::read(Path::new(ROOT).join("cpuset").join(file)).and_then(|value| fs::write(&path, value));
        copied.map_err(|source| NodeError::File { act: "filling", path, source })?;
    }
    Ok(())
}
