//! JobSet's controller, which benchmarks compare with: its program, and the manifests that go with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{JOBSET, ProgramError};

/// Program and objects of JobSet; the operator's benchmark starts the program.
#[derive(Clone, Debug)]
pub struct JobSet {
    /// The controller's program.
    pub program: PathBuf,
    /// The folder of `config/default`, for `kubectl kustomize`.
    pub manifests: PathBuf,
}

impl JobSet {
    /// The version that `programs/jobset/go.mod` pins.
    pub const VERSION: &str = "0.8.2";

    /// Builds the program, unless it was built before.
    ///
    /// # Errors
    /// When Go can not fetch or build it.
    pub fn built() -> Result<Self, ProgramError> {
        let program = JOBSET.built()?.join("jobset");
        let folder = JOBSET.source_folder();
        let asked = Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset"])
            .current_dir(&folder)
            .output()
            .map_err(|source| ProgramError::Run { folder: folder.clone(), source })?;
        if !asked.status.success() {
            let answer = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
            return Err(ProgramError::Build { folder, answer });
        }
        let module = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        Ok(Self { program, manifests: Path::new(&module).join("config/default") })
    }
}
