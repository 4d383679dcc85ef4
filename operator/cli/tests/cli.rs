//! Tests of the command line as a program: texts, exit codes, and the arguments with which it starts the
//! trainer.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

#[path = "cli/cluster.rs"]
mod cluster;
#[path = "cli/clusters.rs"]
mod clusters;
#[path = "cli/convert.rs"]
mod convert;
#[path = "cli/machines.rs"]
mod machines;
#[path = "cli/plan.rs"]
mod plan;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/validate.rs"]
mod validate;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn rlctl(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("RLT_TRAINER")
        .env("COLUMNS", "100")
        .env("HOME", "/nowhere")
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Path of a fixed manifest, relative to the root of the workspace.
const ARITHMETIC: &str = "crds/tests/fixtures/arithmetic.yaml";

/// Writes a manifest with two problems into `folder`.
fn bad_manifest(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(ARITHMETIC)).unwrap();
    let path = folder.join("bad.yaml");
    let text =
        text.replace("numKvHeads: 2", "numKvHeads: 3").replace("    samplesPerPrompt:", "    samples:");
    fs::write(&path, text).unwrap();
    path
}

/// Writes a fake trainer, which prints its arguments and exits with `exit_code`.
fn fake_trainer(folder: &Path, exit_code: i32) -> PathBuf {
    let path = folder.join("rlt-trainer");
    fs::write(&path, format!("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit {exit_code}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_closed_output_pipe_is_no_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for args in [["plan", "-f", ARITHMETIC, "-o", "json"], ["validate", "-f", ARITHMETIC, "-o", "json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
        command.args(args).current_dir(&root).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn help_shows_commands_examples_and_exit_codes() {
    let output = rlctl(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn a_number_of_rows_out_of_its_range_is_refused_with_the_range() {
    let refused = rlctl(&["data", "-f", ARITHMETIC, "--rows", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    let error = stderr(&refused);
    assert!(error.contains("--rows") && error.contains("0 is not in 1..=100000"), "{error}");
}

#[test]
fn as_a_kubectl_plug_in_it_shows_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let called = |name: &str, args: &[&str]| {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rlctl"), &link).unwrap();
        stdout(&Command::new(link).args(args).output().unwrap())
    };
    let help = called("kubectl-rlt", &["why", "--help"]);
    assert!(help.contains("Usage: kubectl rlt why"), "{help}");
    assert!(called("kubectl_complete-rlt", &["lo"]).starts_with("logs\t"));
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = rlctl(&["completion", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(stdout(&output).contains("validate"), "{shell}");
    }
}
