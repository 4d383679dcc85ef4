//! `trainer/gpu-bundle.sh` on a checkout whose binary is a script: what it packs, names and refuses.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use rlt_tests::workspace_root;
use tempfile::TempDir;

/// Lines as `readelf` writes them. Version 2.34 is newer than 2.4, though not as text.
const VERSIONS: &str = "  0x0010:   Name: GLIBC_2.34  Flags: none  Version: 5
  0x0020:   Name: GLIBC_2.4  Flags: none  Version: 3
  0x0030:   Name: GLIBCXX_3.4.30  Flags: none  Version: 4
  0x0040:   Name: GLIBCXX_3.4.9  Flags: none  Version: 2
";
/// A binary that skips its two checks.
const SKIPS: &str =
    r#"for name in device paged; do echo "{\"name\":\"$name\",\"status\":\"skipped\"}"; done"#;

/// A checkout with the script and what it reads: a binary, kernels, libtorch, and programs that inspect the
/// binary.
struct Checkout {
    folder: TempDir,
}

impl Checkout {
    /// A checkout whose binary is the shell code `binary`, which needs `versions`.
    fn new(binary: &str, versions: &str) -> Self {
        let checkout = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["trainer/gpu-bundle.sh", "trainer/gpu-check.sh"] {
            checkout.program(name, &fs::read_to_string(workspace_root().join(name)).unwrap());
        }
        checkout.program("target/debug/rlt-trainer", &format!("#!/bin/sh\n{binary}\n"));
        // strip -o OUTPUT INPUT
        checkout.program("bin/strip", "#!/bin/sh\ncp \"$3\" \"$2\"\n");
        checkout.program("bin/readelf", "#!/bin/sh\ncat \"$VERSIONS\"\n");
        for (name, text) in
            [("versions", versions), ("kernels", "kernels"), ("libtorch/lib/libtorch_cpu.so", "")]
        {
            checkout.program(name, text);
        }
        checkout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes an executable file.
    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Packs the bundle; returns the exit code and standard error.
    fn bundle(&self) -> (Option<i32>, String) {
        let mut script = Command::new("bash");
        script.arg(self.path("trainer/gpu-bundle.sh")).arg("dev").arg(self.path("bundle.tar.gz"));
        let path = std::env::var("PATH").unwrap();
        script.env("PATH", format!("{}:{path}", self.path("bin").display()));
        script.env("CARGO_TARGET_DIR", self.path("target")).env("LIBTORCH", self.path("libtorch"));
        script.env("RLT_KERNELS", self.path("kernels")).env("VERSIONS", self.path("versions"));
        let output = script.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn a_bundle_has_four_files_and_names_the_newest_versions_that_its_binary_needs() {
    let checkout = Checkout::new(SKIPS, VERSIONS);
    let (code, words) = checkout.bundle();
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("the binary needs GLIBC_2.34 and GLIBCXX_3.4.30 or newer"), "{words}");
    assert!(words.contains("less than 60; unpacked elsewhere, without GPU, all 2 checks"), "{words}");
    let listed = Command::new("tar").arg("-tzf").arg(checkout.path("bundle.tar.gz")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<&str> = listed.lines().filter(|name| !name.ends_with('/')).collect();
    let expected = ["commit", "gpu-check", "rlt-kernels.fatbin", "rlt-trainer"];
    assert_eq!(files, expected.map(|name| format!("gpu-bundle/{name}")));
}

#[test]
fn a_bundle_that_cannot_be_used_is_refused_with_the_reason() {
    for (binary, versions, reason) in [
        (SKIPS, "", "names no versions of GLIBC and GLIBCXX"),
        ("echo '{\"status\":\"passed\"}'", VERSIONS, "without a GPU 0 of 1 checks say that they are skipped"),
        ("exit 1", VERSIONS, "what is packed does not run"),
    ] {
        let (code, words) = Checkout::new(binary, versions).bundle();
        assert!(code == Some(1) && words.contains(reason), "{reason}: {code:?} {words}");
    }
    let checkout = Checkout::new(SKIPS, VERSIONS);
    fs::remove_file(checkout.path("kernels")).unwrap();
    let (code, words) = checkout.bundle();
    assert!(code == Some(1) && words.contains("kernels is missing"), "{words}");
}

#[test]
fn a_bundle_of_60_mib_is_refused() {
    let checkout = Checkout::new(SKIPS, VERSIONS);
    // Random bytes cannot be compressed.
    let mut random = File::open("/dev/urandom").unwrap().take(60 << 20);
    io::copy(&mut random, &mut File::create(checkout.path("kernels")).unwrap()).unwrap();
    let (code, words) = checkout.bundle();
    assert!(code == Some(1) && words.contains("MiB, expected less than 60"), "{words}");
}
