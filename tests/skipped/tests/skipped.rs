//! A skipped test is reported on the terminal and in the notes, and fails under CI.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use rlt_skipped::{NOTES, skip, skip_also_under_ci};

/// Set in the processes that [`run_of`] starts.
const INNER: &str = "RLT_SKIPPED_INNER";

#[test]
fn inner_lacks_a_program() {
    if std::env::var_os(INNER).is_some() {
        skip("no frobnicator here");
    }
}

#[test]
fn inner_lacks_a_gpu() {
    if std::env::var_os(INNER).is_some() {
        skip_also_under_ci("no GPU here");
    }
}

/// Runs the test `name` of this file as a process of its own, from a copy below `folder`, so that its notes
/// are not those of the run of all tests.
fn run_of(name: &str, folder: &Path, ci: &str) -> Output {
    // A process that another thread starts would inherit the copy while it is open for writing, and a file
    // that is open for writing cannot be executed.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deps = folder.join("target/debug/deps");
    fs::create_dir_all(&deps).unwrap();
    let copy = deps.join("skipped");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    Command::new(copy).args(["--exact", name]).env(INNER, "1").env("CI", ci).output().unwrap()
}

fn notes(folder: &Path) -> String {
    fs::read_to_string(folder.join("target").join(NOTES)).unwrap_or_default()
}

#[test]
fn a_skipped_test_is_on_the_terminal_and_in_the_notes() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_of("inner_lacks_a_program", folder.path(), "");
    assert!(output.status.success());
    let line = "inner_lacks_a_program: no frobnicator here\n";
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("SKIPPED {line}")));
    assert!(run_of("inner_lacks_a_gpu", folder.path(), "").status.success());
    assert_eq!(notes(folder.path()), format!("{line}inner_lacks_a_gpu: no GPU here\n"));
}

#[test]
fn under_ci_only_what_ci_lacks_too_may_be_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let failed = run_of("inner_lacks_a_program", folder.path(), "true");
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(!failed.status.success() && said.contains("a test must not be skipped"), "{said}");
    assert!(run_of("inner_lacks_a_gpu", folder.path(), "true").status.success());
    assert_eq!(notes(folder.path()), "inner_lacks_a_gpu: no GPU here\n");
}
