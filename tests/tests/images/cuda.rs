//! The image for workers with GPUs, on a machine that has none: every library in it resolves, and libtorch's
//! CUDA half loads with zero devices.

use std::collections::BTreeMap;
use std::process::Command;

use rlt_tests::{cuda_image_lacks, test_image};
use serde_json::Value;

const IMAGE: &str = "rlt.local/rlt-trainer:test-cuda";

/// A container of the image, which is removed on drop.
struct Container(String);

impl Container {
    /// Starts a container of the image in buildah's own store, or of the image's archive if another tool
    /// built the image.
    fn new(archive: &str) -> Self {
        let stored = Command::new("buildah").args(["from", "--pull-never", IMAGE]).output().unwrap();
        let name = match stored.status.success() {
            true => String::from_utf8(stored.stdout).unwrap(),
            false => buildah(&["from", "--pull-never", &format!("oci-archive:{archive}")]),
        };
        Self(name.trim().to_owned())
    }

    fn run(&self, command: &[&str]) -> String {
        buildah(&[&["run", "--isolation", "chroot", &self.0, "--"], command].concat())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new("buildah").args(["rm", &self.0]).output();
    }
}

#[track_caller]
fn buildah(arguments: &[&str]) -> String {
    let output = Command::new("buildah").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn in_the_image_every_library_resolves_and_libtorchs_cuda_half_loads_with_zero_devices() {
    if let Some(cause) = cuda_image_lacks() {
        rlt_skipped::skip_also_under_ci(cause);
        return;
    }
    let archive = test_image("rlt-trainer-cuda");
    let container = Container::new(archive.to_str().unwrap());

    let every = "for file in /usr/local/lib/*.so*; do ldd $file | sed \"s|^|$(basename $file)|\"; done";
    let links = container.run(&["sh", "-c", every]);
    let unresolved = |line: &&str| line.contains("not found") && !line.contains("libcuda.so.1");
    let unresolved: Vec<_> = links.lines().filter(unresolved).collect();
    assert!(unresolved.is_empty(), "only the driver is the node's: {unresolved:?}");
    assert!(links.contains("libcublas.so.13 => /usr/local/lib/"), "{links}");
    assert!(!container.run(&["ls", "/usr/local/lib"]).contains("libcuda.so"), "no driver");

    let seen: Value =
        serde_json::from_str(&container.run(&["rlt-trainer", "device", "--output", "json"])).unwrap();
    assert_eq!((&seen["usable"], &seen["driver"]), (&Value::Bool(false), &Value::Null));
    let libraries: BTreeMap<_, _> = seen["libraries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|library| (library["name"].as_str().unwrap(), library))
        .collect();
    for (name, version) in [
        ("libtorch_cuda", None),
        ("CUDA runtime", Some("13.0")),
        ("cuBLAS", Some("13.1.0")),
        ("cuDNN", Some("9.19.0")),
        ("NCCL", Some("2.28.9")),
    ] {
        let library = libraries[name];
        assert!(
            library["path"].as_str().is_some_and(|path| path.starts_with("/usr/local/lib/")),
            "{library}"
        );
        assert_eq!(library["version"].as_str(), version, "{library}");
    }
}
