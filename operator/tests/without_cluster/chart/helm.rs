//! Helm, as clusters of tests use it. Without Go to build it, tests that need it skip, and under CI they
//! fail.

use std::path::PathBuf;
use std::process::Command;

/// The program `helm`.
#[derive(Clone, Debug)]
pub(crate) struct Helm(PathBuf);

impl Helm {
    pub(crate) fn find() -> Option<Self> {
        let helm = rlt_cluster::helm().unwrap()?;
        Some(Self(helm.get_program().into()))
    }

    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let root = super::root();
        let answer = Command::new(&self.0).args(arguments).current_dir(root).output().unwrap();
        let error = String::from_utf8_lossy(&answer.stderr).into_owned();
        if answer.status.success() { Ok(String::from_utf8(answer.stdout).unwrap()) } else { Err(error) }
    }

    pub(crate) fn lint(&self) {
        self.run(&["lint", "--strict", "charts/rl-operator"]).unwrap();
    }

    /// The manifests of the release `rl-operator`, or helm's error.
    pub(crate) fn template(&self, arguments: &[&str]) -> Result<String, String> {
        self.template_of("rl-operator", arguments)
    }

    /// The manifests of a release, or helm's error.
    pub(crate) fn template_of(&self, release: &str, arguments: &[&str]) -> Result<String, String> {
        let base = ["template", release, "charts/rl-operator", "--kube-version", "1.36.0"];
        self.run(&[&base, arguments].concat())
    }
}
