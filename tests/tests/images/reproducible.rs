//! Two builds of an image from the same binaries and libraries have the same digest. A program and libraries
//! of a few bytes replace the trainer's: only the build is tested.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlt_tests::workspace_root;
use serde_json::Value;
use tempfile::TempDir;

const LIBRARIES: [&str; 3] = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1"];

/// Tag of the image, which no other run of the tests has.
fn tag() -> String {
    format!("test-reproducible-{}", std::process::id())
}

/// Returns the reason why images cannot be built here, or not reproducibly.
fn missing() -> Option<&'static str> {
    let works =
        |program: &str| Command::new(program).arg("info").output().is_ok_and(|it| it.status.success());
    if works("docker") {
        return Some("docker is preferred here, whose images carry the time at which they were built");
    }
    (!works("podman") && !works("buildah")).then_some("neither podman nor buildah works here")
}

/// A folder with the inputs of an image.
struct Inputs(TempDir);

impl Inputs {
    fn new(library: &str, mode: u32) -> Self {
        let inputs = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(inputs.path("target/debug")).unwrap();
        fs::create_dir_all(inputs.path("torch/lib")).unwrap();
        fs::copy("/bin/true", inputs.path("target/debug/rlt-trainer")).unwrap();
        for name in LIBRARIES {
            let path = inputs.path("torch/lib").join(name);
            fs::write(&path, format!("{name} {library}")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        inputs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds the image with this umask, and returns its digest.
    fn build(&self, umask: &str) -> String {
        let script = workspace_root().join("charts/images.sh");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(script);
        command.args(["dev", &tag()]).arg(self.path("images")).arg("rlt-trainer");
        command.env("CARGO_TARGET_DIR", self.path("target")).env("LIBTORCH", self.path("torch"));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let digest = digest(&self.path("images/rlt-trainer.tar"));
        assert!(said.contains(&digest), "the build says its digest: {said}");
        digest
    }
}

fn digest(archive: &Path) -> String {
    let mut command = Command::new("tar");
    command.args(["--extract", "--to-stdout", "--file"]).arg(archive).arg("index.json");
    let index: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}

/// Removes the image when the test ends.
struct Removed;

impl Drop for Removed {
    fn drop(&mut self) {
        for tool in ["podman", "buildah"] {
            let _ = Command::new(tool).args(["rmi", &format!("rlt.local/rlt-trainer:{}", tag())]).output();
        }
    }
}

#[test]
fn images_are_reproducible_from_the_same_binaries() {
    if let Some(cause) = missing() {
        rlt_skipped::skip(cause);
        return;
    }
    let _removed = Removed;
    let first = Inputs::new("of libtorch", 0o644).build("022");
    let later = Inputs::new("of libtorch", 0o755).build("077");
    assert_eq!(first, later);
    let other = Inputs::new("of another libtorch", 0o644).build("022");
    assert_ne!(first, other, "the digest is of what the image holds");
}
