//! The chart with the images under test, on a cluster with a real node.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rlt_cluster::Cluster;

/// Name of the release, of its namespace and of the operator's Lease.
pub(crate) const RELEASE: &str = "rl-operator";

/// Root folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Runs a command to its successful end; returns its output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.current_dir(root()).output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Runs `kubectl` as the administrator to its successful end; returns its output.
pub(crate) fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    succeed(cluster.kubectl().args(arguments))
}

/// Installs or upgrades the release with the images under test, and waits until all of it is ready. `more`
/// are further values, each after a comma.
pub(crate) fn upgrade(cluster: &Cluster, more: &str) {
    let values = format!(
        "image.tag=test,image.pullPolicy=Never,trainerImage.tag=test,trainerImage.pullPolicy=Never{more}"
    );
    let mut helm = cluster.helm().unwrap();
    helm.args(["upgrade", "--install", RELEASE, "charts/rl-operator", "--namespace", RELEASE]);
    helm.args(["--create-namespace", "--wait", "--timeout", "300s", "--set", &values]);
    let output = helm.current_dir(root()).output().unwrap();
    assert!(
        output.status.success(),
        "{helm:?}: {}\n{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        kubectl(cluster, &["describe", "pods", "-n", RELEASE]),
        kubectl(cluster, &["describe", "nodes"])
    );
}
