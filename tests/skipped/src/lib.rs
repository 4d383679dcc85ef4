//! Tests that cannot run on this machine. Each says so on the terminal and is noted in
//! `target/skipped-tests.txt`, which `make test` shows at its end. The test itself decides what it needs.
//! Apart from that there is only [`HeldPort`], so that every crate's tests can depend on this one.

mod held_port;

use std::io::Write;
use std::path::{Path, PathBuf};

pub use held_port::HeldPort;

/// The file of notes, in cargo's folder of builds: a line a test.
pub const NOTES: &str = "skipped-tests.txt";

/// Notes that the running test is skipped for `reason`: something that every machine can install.
///
/// # Panics
/// Under continuous integration (`CI` is set), where a skipped test would pass for one that ran.
#[expect(clippy::panic, reason = "a test that must not be skipped fails")]
pub fn skip(reason: &str) {
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        panic!("CI is set, and there a test must not be skipped: {reason}");
    }
    skip_also_under_ci(reason);
}

/// Notes that the running test is skipped for `reason`: something that continuous integration does not have
/// either, such as a GPU.
pub fn skip_also_under_ci(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("test"));
    // The test harness captures the print macros, but not this.
    let _ = std::io::stderr().write_all(format!("SKIPPED {line}").as_bytes());
    let notes = std::fs::File::options().create(true).append(true).open(target_folder().join(NOTES));
    let _ = notes.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Variable that says that `make prepare` has run: what tests download or compile is then there, and a test
/// that would have to make it fails.
pub const PREPARED: &str = "RLT_TESTS_PREPARED";

/// Whether `make prepare` has run for this run of the tests.
pub fn is_prepared() -> bool {
    std::env::var_os(PREPARED).is_some_and(|value| !value.is_empty())
}

/// Whether a test may download or compile `what`, which `make prepare` makes too.
///
/// # Errors
/// The text of a failure, where [`is_prepared`].
pub fn may_prepare(what: &str) -> Result<(), String> {
    if is_prepared() {
        return Err(format!("{what} is not there although {PREPARED} is set; `make prepare` makes it"));
    }
    Ok(())
}

/// Cargo's folder of builds, known from where the test itself is (`target/<profile>/deps/<test>`).
fn target_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(3).map_or_else(PathBuf::new, Path::to_path_buf)
}
