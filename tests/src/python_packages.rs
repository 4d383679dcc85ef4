//! Python with packages of other projects, for tests in which those packages read the product's files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace_root;

/// A package with its dependencies, pinned by digest in `tests/python/NAME.txt`.
#[derive(Clone, Copy, Debug)]
pub struct PythonPackage {
    name: &'static str,
}

/// MLflow's server and client.
pub const MLFLOW: PythonPackage = PythonPackage { name: "mlflow" };
/// TensorBoard's reader of event files.
pub const TENSORBOARD: PythonPackage = PythonPackage { name: "tensorboard" };
/// Trackio's server and client.
pub const TRACKIO: PythonPackage = PythonPackage { name: "trackio" };
/// TRL's chat templates with jinja2. TRL itself cannot be imported: its dependencies are left out.
pub const TRL: PythonPackage = PythonPackage { name: "trl" };
/// The reader of W&B's files.
pub const WANDB: PythonPackage = PythonPackage { name: "wandb" };

impl PythonPackage {
    /// All packages that tests use.
    pub const ALL: [Self; 5] = [MLFLOW, TENSORBOARD, TRACKIO, TRL, WANDB];

    /// Name of the package on PyPI.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns a `python3` that finds the package. `None` if the package cannot be installed: the test is
    /// skipped, and under CI it fails.
    ///
    /// # Panics
    /// Under CI, where the package cannot be installed.
    pub fn python(self) -> Option<Command> {
        match self.installed() {
            Ok(folder) => {
                let mut python = Command::new("python3");
                python.env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
                Some(python)
            }
            Err(reason) => {
                rlt_skipped::skip(&format!("{} cannot be installed: {reason}", self.name));
                None
            }
        }
    }

    /// Returns the folder below `~/.cache/rlt/python` with the package and its dependencies, which are
    /// installed if they are missing.
    ///
    /// # Errors
    /// The reason why pip could not install the package, or that `make prepare` should have installed it.
    pub fn installed(self) -> Result<PathBuf, String> {
        let requirements = workspace_root().join("tests/python").join(self.name).with_extension("txt");
        let text = fs::read_to_string(&requirements).map_err(|error| error.to_string())?;
        let cache = crate::cache_folder().ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("python");
        let folder = cache.join(format!("{}-{}", self.name, crate::digest(&text)));
        if folder.exists() {
            return Ok(folder);
        }
        rlt_skipped::may_prepare(&format!("the Python package {}", self.name))?;
        fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
        // Only one process installs; the others wait for it.
        let lock = File::create(folder.with_extension("lock")).map_err(|error| error.to_string())?;
        lock.lock().map_err(|error| error.to_string())?;
        if !folder.exists() {
            let unfinished = tempfile::tempdir_in(&cache).map_err(|error| error.to_string())?;
            install(&requirements, unfinished.path())?;
            fs::rename(unfinished.keep(), &folder).map_err(|error| error.to_string())?;
        }
        Ok(folder)
    }
}

fn install(requirements: &Path, folder: &Path) -> Result<(), String> {
    let mut pip = Command::new("python3");
    // The file lists all packages to install, so pip must not add others.
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]);
    let ended = pip.arg("--target").arg(folder).arg("--requirement").arg(requirements).output();
    let ended = ended.map_err(|error| error.to_string())?;
    if ended.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ended.stderr).into_owned()) }
}
