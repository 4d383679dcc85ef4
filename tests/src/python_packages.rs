//! Python with packages of PyPI, for tests in which other programs read the product's files.

use std::path::PathBuf;
use std::process::Command;

/// A `python3` that finds `packages` (`name==version`), which are kept in `~/.cache/rlt/python`. `None` where
/// they are not there and cannot be installed: tests that need them skip, and under CI they fail.
///
/// # Panics
/// Under CI, where they cannot be installed.
pub fn python_with(packages: &[&str]) -> Option<Command> {
    let names = packages.join(" ");
    match installed(packages) {
        Ok(folder) => {
            let mut python = Command::new("python3");
            python.env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
            Some(python)
        }
        Err(reason) => {
            rlt_skipped::skip(&format!("{names} cannot be installed: {reason}"));
            None
        }
    }
}

/// The folder of `packages`, whole or not there at all: tests of several processes install side by side.
fn installed(packages: &[&str]) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").map(PathBuf::from).ok_or("HOME is not set")?;
    let cache = home.join(".cache/rlt/python");
    let folder = cache.join(packages.join("+"));
    if folder.exists() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
    let unfinished = tempfile::tempdir_in(&cache).map_err(|error| error.to_string())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(unfinished.path()).args(packages);
    let ended = pip.output().map_err(|error| error.to_string())?;
    if !ended.status.success() {
        return Err(String::from_utf8_lossy(&ended.stderr).into_owned());
    }
    let path = unfinished.keep();
    match std::fs::rename(&path, &folder) {
        // Another process was faster.
        Err(_) if folder.exists() => std::fs::remove_dir_all(path).map_err(|error| error.to_string())?,
        renamed => renamed.map_err(|error| error.to_string())?,
    }
    Ok(folder)
}
