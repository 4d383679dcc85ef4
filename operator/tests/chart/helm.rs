//! Helm, from the machine or built by Go; without either, tests that need it skip, and under CI they fail.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm@v4.3.1";
const FOLDER: &str = ".cache/rlt/helm-v4.3.1";

/// The program.
#[derive(Clone, Debug)]
pub(crate) struct Helm(PathBuf);

impl Helm {
    pub(crate) fn find() -> Option<Self> {
        static FOUND: OnceLock<Option<Helm>> = OnceLock::new();
        let found = FOUND.get_or_init(|| Self::built().or_else(Self::installed)).clone();
        if found.is_none() {
            rlt_skipped::skip("neither helm nor go is installed");
        }
        found
    }

    fn installed() -> Option<Self> {
        let answer = Command::new("helm").arg("version").output().ok()?;
        answer.status.success().then(|| Self("helm".into()))
    }

    fn built() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("HOME")?).join(FOLDER);
        let program = folder.join("helm");
        if !program.exists() {
            std::fs::create_dir_all(&folder).ok()?;
            let built = Command::new("go").args(["install", PACKAGE]).env("GOBIN", &folder).status().ok()?;
            if !built.success() {
                return None;
            }
        }
        Some(Self(program))
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
        let base = ["template", "rl-operator", "charts/rl-operator", "--kube-version", "1.36.0"];
        self.run(&[&base, arguments].concat())
    }
}
