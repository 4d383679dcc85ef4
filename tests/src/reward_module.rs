//! The example of a reward function in the sandbox, as a module of WebAssembly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{profile_folder, workspace_root};

/// Target of modules for the sandbox.
const TARGET: &str = "wasm32-unknown-unknown";

/// Compiles `examples/rewards/reward.rs` by the command in its header, unless a newer module exists. `None`
/// if Rust's standard library for WebAssembly is not installed.
///
/// # Errors
/// The output of the compiler, or that `make prepare` should have compiled the module.
pub fn reward_module() -> Result<Option<PathBuf>, String> {
    let source = workspace_root().join("examples/rewards/reward.rs");
    let module = profile_folder().join("reward.wasm");
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    if modified(&module) > modified(&source) {
        return Ok(Some(module));
    }
    if !is_target_installed()? {
        return Ok(None);
    }
    rlt_skipped::may_prepare("the example's module for the sandbox")?;
    let unfinished = module.with_extension("unfinished");
    let options = ["-O", "--crate-type", "cdylib", "-C", "strip=symbols"];
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2021", "--target", TARGET]).args(options).arg("-o").arg(&unfinished);
    let compiled = compiler.arg(source).output().map_err(|error| error.to_string())?;
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    fs::rename(unfinished, &module).map_err(|error| error.to_string())?;
    Ok(Some(module))
}

fn is_target_installed() -> Result<bool, String> {
    let mut compiler = Command::new("rustc");
    let answer = compiler.args(["--print", "target-libdir", "--target", TARGET]).output();
    let folder = answer.map_err(|error| error.to_string())?.stdout;
    Ok(Path::new(String::from_utf8_lossy(&folder).trim()).is_dir())
}
