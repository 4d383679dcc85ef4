//! Helpers of the black-box tests: binaries, images and servers.
//!
//! There is no product code here, and product code does not use this crate.

mod choices;
pub mod collector;
mod covering_array;
pub mod hub_push_server;
pub mod hub_server;
pub mod object_server;
mod python_module;
mod python_packages;
mod python_server;
pub mod relay;
mod reward_module;
mod run_folders;
mod small_disk;
mod tiny;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use rlt_rules::rust_sources;
use sha2::{Digest as _, Sha256};

pub use choices::choices;
pub use covering_array::covering_array;
pub use python_module::python_module;
pub use python_packages::{MLFLOW, PythonPackage, TENSORBOARD, TRACKIO, TRL, WANDB};
pub use python_server::{MlflowServer, TrackioServer};
pub use reward_module::reward_module;
pub use rlt_rules::workspace_root;
pub use rlt_skipped::HeldPort;
pub use run_folders::{is_in_memory, run_folder};
pub use small_disk::SmallDisk;
pub use tiny::{merge, tiny_job, tiny_job_with};

/// Whether a metric depends on the machine, or on how rows are distributed to ranks, so that two runs of one
/// job may differ in it.
pub fn depends_on_machine(metric: &str) -> bool {
    [
        "timing_s/",
        "perf/",
        "timestamp",
        "training/num_micro_batches",
        "critic/num_micro_batches",
        "rollout/kv_cache_gb",
    ]
    .iter()
    .any(|prefix| metric.starts_with(prefix))
}

/// A binary of this workspace, built by the same `cargo test --workspace` that runs the tests.
///
/// Cargo names the binaries of a package to that package's own tests only, so the folder is found from the
/// running test's own path (`target/<profile>/deps/<test>`).
pub fn binary(name: &str) -> PathBuf {
    profile_folder().join(name)
}

/// Returns the path of a binary, and builds it if it is missing or older than a source: for `cargo test -p
/// rlt-tests` alone.
///
/// # Panics
/// When Cargo can not build it.
pub fn fresh_binary(name: &str) -> PathBuf {
    static OPERATOR: OnceLock<bool> = OnceLock::new();
    static OTHERS: OnceLock<bool> = OnceLock::new();
    if rlt_skipped::is_prepared() {
        return binary(name);
    }
    // `rlctl` starts the trainer in its own folder, so both are built.
    let is_built = match name {
        "rlt-operator" => OPERATOR.get_or_init(|| {
            is_fresh(
                "rlt-operator",
                &["crds/", "operator/src/", "operator/objects/src/", "trainer/core/layout/src/"],
            ) || build_binaries(&["rlt-operator"])
        }),
        _ => OTHERS.get_or_init(|| {
            is_fresh("rlt-trainer", &["crds/", "trainer/"])
                && is_fresh(
                    "rlctl",
                    &[
                        "crds/models/src/",
                        "crds/plan/src/",
                        "crds/src/",
                        "operator/cli/src/",
                        "operator/convert/src/",
                        "operator/objects/src/",
                        "trainer/core/layout/src/",
                        "trainer/tracking/src/",
                    ],
                )
                || build_binaries(&["rlt-trainer", "rlctl"])
        }),
    };
    assert!(is_built, "the binaries under test do not build");
    binary(name)
}

/// Builds the image `rlt.local/<name>:test` (`rlt-trainer-cuda`: `rlt.local/rlt-trainer:test-cuda`) of the
/// binary under test by the project's own Dockerfile, and returns the path of its OCI archive. An archive
/// that is newer than its inputs is not built again.
///
/// # Panics
/// When binary or image can not be built.
pub fn test_image(name: &str) -> PathBuf {
    fresh_binary(name.trim_end_matches("-cuda"));
    image_of_built_binary(name)
}

/// Builds a test image as [`test_image`] does, but from a binary that was built before.
///
/// # Panics
/// When the image can not be built, or `make prepare` should have built it.
pub fn image_of_built_binary(name: &str) -> PathBuf {
    // Tests of one process share a build folder, so they build one after the other.
    static BUILDS: Mutex<()> = Mutex::new(());
    let _turn = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    let modified = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let root = workspace_root();
    let folder = profile_folder().join("images");
    let archive = folder.join(format!("{name}.tar"));
    let dockerfile = if name == "rlt-operator" { "operator/Dockerfile" } else { "trainer/Dockerfile" };
    let sources =
        [binary(name.trim_end_matches("-cuda")), root.join(dockerfile), root.join("charts/images.sh")];
    if modified(&archive)
        .is_some_and(|at| sources.iter().all(|source| modified(source).is_some_and(|m| m < at)))
    {
        return archive;
    }
    assert_eq!(rlt_skipped::may_prepare(&format!("the image of the present {name}")), Ok(()));
    let profile =
        profile_folder().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut build = Command::new(root.join("charts/images.sh"));
    build.args([if profile == "debug" { "dev" } else { &profile }, "test"]).arg(&folder).arg(name);
    build.env("CARGO_TARGET_DIR", profile_folder().parent().unwrap_or(&folder));
    let (is_built, answer) = match build.output() {
        Ok(output) => (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => (false, error.to_string()),
    };
    assert!(is_built, "no image of {name}: {answer}");
    archive
}

/// Reason why the image for GPUs cannot be built here; `None` where it can be.
pub fn cuda_image_lacks() -> Option<&'static str> {
    // The file that `make libtorch CUDA=1` writes last.
    if !workspace_root().join(".libtorch/cuda-requirements.txt").exists() {
        return Some("CUDA's libraries are not here; `make test-cuda-image` fetches them, 2 GB");
    }
    let works = Command::new("buildah").arg("info").output().is_ok_and(|it| it.status.success());
    (!works).then_some("buildah does not work here")
}

/// Folder in which this project keeps what is downloaded or compiled once for all checkouts. `None` where
/// neither `XDG_CACHE_HOME` nor `HOME` is set.
fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?.join("rlt"))
}

/// First 16 hexadecimal digits of a text's SHA-256.
fn digest(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))[..16].to_owned()
}

fn profile_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(&program);
    let is_test = folder.file_name().is_some_and(|name| name == "deps");
    if is_test { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf()
}

/// Whether a binary is younger than every source in `folders` that can be part of it.
fn is_fresh(name: &str, folders: &[&str]) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(built) = modified(&binary(name)) else { return false };
    let is_part = |path: &str| path.contains("src/") && folders.iter().any(|folder| path.starts_with(folder));
    let sources = rust_sources().unwrap_or_default();
    sources
        .iter()
        .filter(|source| is_part(&source.path))
        .all(|source| modified(&workspace_root().join(&source.path)).is_some_and(|at| at <= built))
}

fn build_binaries(packages: &[&str]) -> bool {
    let folder = profile_folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let target = folder.parent().unwrap_or(&folder);
    Command::new(env!("CARGO"))
        .args(["build", "--bins", "--profile", profile])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--target-dir")
        .arg(target)
        .current_dir(workspace_root())
        .status()
        .is_ok_and(|status| status.success())
}
