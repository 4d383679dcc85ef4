//! The Python interpreter for the sandbox, which the examples' script fetches once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::workspace_root;

/// Returns the path of CPython as a WASI module in `~/.cache/rlt`, which is fetched if it is missing. `None`
/// if it cannot be fetched: tests that need it are skipped, and under CI they fail.
///
/// # Panics
/// Under CI, where it cannot be fetched.
pub fn python_module() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let module = crate::cache_folder()?.join("python-3.12.0-wasi/python.wasm");
        if !module.exists()
            && let Err(reason) = rlt_skipped::may_prepare("the interpreter for the sandbox")
        {
            rlt_skipped::skip(&reason);
            return None;
        }
        let script = workspace_root().join("examples/rewards/fetch-python.sh");
        let fetched = Command::new(script).arg(&module).output().ok()?;
        if fetched.status.success() {
            return Some(module);
        }
        let answer = String::from_utf8_lossy(&fetched.stderr).into_owned();
        rlt_skipped::skip(&format!("the interpreter for the sandbox cannot be fetched: {answer}"));
        None
    });
    found.clone()
}
