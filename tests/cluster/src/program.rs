//! The programs: Go modules in `programs/`, built once for each content of their `go.mod`, `go.sum` and
//! sources.
//!
//! Nothing is downloaded as a binary: a proxy of Go modules suffices for a whole Kubernetes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// An error of building a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no folder to keep builds in.
    #[error("neither XDG_CACHE_HOME nor HOME is set, so there is no folder to keep builds in")]
    NoCacheFolder,
    /// The program is not built, and tests may not build it now.
    #[error("{0}")]
    NotPrepared(String),
    /// A file could not be read or written.
    #[error("{act} {path} failed")]
    File {
        /// The operation that failed.
        act: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Go could not be started.
    #[error("running go in {folder} failed")]
    Run {
        /// The module's folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Go could not build the module.
    #[error("go could not build {folder}: {answer}")]
    Build {
        /// The module's folder.
        folder: PathBuf,
        /// Standard error of Go.
        answer: String,
    },
}

/// File of a module's folder that lists the files of required modules to keep with the binary.
const KEPT: &str = "kept.txt";

/// A module of `programs/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    /// Name of the module's folder below `programs/`.
    pub(crate) name: &'static str,
    /// The package to build: `.`, or one of another module that `go.mod` requires.
    pub(crate) package: &'static str,
    /// Variables to set at link time, as `-X` of Go's linker takes them.
    pub(crate) link_variables: &'static [&'static str],
    /// Names under which the binary is called; the first is that of the file.
    pub(crate) names: &'static [&'static str],
}

/// All of Kubernetes: one binary that acts as the program it is called by.
pub(crate) const KUBERNETES: Module = Module {
    name: "kubernetes",
    package: ".",
    link_variables: &[
        "k8s.io/component-base/version.gitVersion=v1.36.3",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=36",
    ],
    names: &[
        "kubernetes",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
        "device-driver",
        "pod-security",
    ],
};

/// Argo CD, which syncs clusters with git, with the files of its kinds.
pub(crate) const ARGO_CD: Module = Module {
    name: "argocd",
    package: ".",
    link_variables: &[],
    names: &["argocd", "argocd-application-controller", "argocd-repo-server", "argocd-redis"],
};

/// Nodes that exist in the API alone, and their pods.
pub(crate) const KWOK: Module =
    Module { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok", link_variables: &[], names: &["kwok"] };

/// Names of services and pods.
pub(crate) const COREDNS: Module = Module {
    name: "coredns",
    package: "github.com/coredns/coredns",
    link_variables: &[],
    names: &["coredns"],
};

/// Helm, which installs charts.
pub(crate) const HELM: Module =
    Module { name: "helm", package: "helm.sh/helm/v4/cmd/helm", link_variables: &[], names: &["helm"] };

/// Gangs of batch Jobs, to compare with.
pub(crate) const JOBSET: Module =
    Module { name: "jobset", package: "sigs.k8s.io/jobset", link_variables: &[], names: &["jobset"] };

/// Flux's kstatus, which reads an object's status.
pub(crate) const KSTATUS: Module =
    Module { name: "kstatus", package: ".", link_variables: &[], names: &["kstatus"] };

/// Argo Workflows' evaluation of a resource under conditions.
pub(crate) const CONDITIONS: Module =
    Module { name: "conditions", package: ".", link_variables: &[], names: &["conditions"] };

/// The Operator Lifecycle Manager's library, which validates a bundle.
pub(crate) const BUNDLE: Module =
    Module { name: "bundle", package: ".", link_variables: &[], names: &["bundle"] };

/// The evaluation of NetworkPolicies in kube-network-policies, without a cluster.
pub(crate) const NETWORK_POLICY: Module =
    Module { name: "networkpolicy", package: ".", link_variables: &[], names: &["networkpolicy"] };

/// Queues, with the files of its kinds and webhooks.
pub(crate) const KUEUE: Module =
    Module { name: "kueue", package: "sigs.k8s.io/kueue/cmd/kueue", link_variables: &[], names: &["kueue"] };

/// An object store that speaks S3.
pub(crate) const MINIO: Module =
    Module { name: "minio", package: "github.com/minio/minio", link_variables: &[], names: &["minio"] };

/// Program of the harness's own pods, which also holds the namespaces of all pods.
pub(crate) const PROBE: Module =
    Module { name: "probe", package: ".", link_variables: &[], names: &["probe"] };

/// Every module, the most used first.
pub(crate) const ALL: [Module; 13] = [
    KUBERNETES,
    KWOK,
    HELM,
    COREDNS,
    PROBE,
    KUEUE,
    MINIO,
    JOBSET,
    KSTATUS,
    CONDITIONS,
    BUNDLE,
    NETWORK_POLICY,
    ARGO_CD,
];

impl Module {
    /// The folder of the sources.
    pub(crate) fn source_folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(self.name)
    }

    /// The folder that holds the built program under each of its names, built now if it was not yet.
    ///
    /// Processes that ask at once wait for one build; a build that was cut off leaves nothing that is taken
    /// for whole.
    pub(crate) fn built(&self) -> Result<PathBuf, ProgramError> {
        let folder = self.folder()?;
        if folder.exists() {
            return Ok(folder);
        }
        rlt_skipped::may_prepare(&format!("the program {}", self.name)).map_err(ProgramError::NotPrepared)?;
        let cache = cache_folder()?;
        fs::create_dir_all(&cache).map_err(file_error("making", &cache))?;
        let lock_path = folder.with_extension("lock");
        let lock = File::create(&lock_path).map_err(file_error("making", &lock_path))?;
        lock.lock().map_err(file_error("locking", &lock_path))?;
        if !folder.exists() {
            let unfinished = folder.with_extension("unfinished");
            self.build_into(&unfinished)?;
            fs::rename(&unfinished, &folder).map_err(file_error("renaming", &unfinished))?;
        }
        Ok(folder)
    }

    /// Whether the program is built for the module's present content.
    pub(crate) fn is_built(&self) -> Result<bool, ProgramError> {
        Ok(self.folder()?.exists())
    }

    fn folder(&self) -> Result<PathBuf, ProgramError> {
        Ok(cache_folder()?.join(format!("{}-{}", self.name, self.digest()?)))
    }

    fn build_into(&self, folder: &Path) -> Result<(), ProgramError> {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(file_error("removing", folder))?;
        }
        fs::create_dir_all(folder).map_err(file_error("making", folder))?;
        let source_folder = self.source_folder();
        let variables: String =
            self.link_variables.iter().map(|variable| format!(" -X {variable}")).collect();
        let Some((file, links)) = self.names.split_first() else { return Ok(()) };
        let output = Command::new("nice")
            .args([
                "go",
                "build",
                "-trimpath",
                "-buildvcs=false",
                // The linker drops debug information; without it a compiler takes a tenth less time.
                "-gcflags=all=-dwarf=false",
                "-ldflags",
                &format!("-s -w{variables}"),
                "-o",
            ])
            .arg(folder.join(file))
            .arg(self.package)
            .env("CGO_ENABLED", "0")
            .current_dir(&source_folder)
            .output()
            .map_err(|source| ProgramError::Run { folder: source_folder.clone(), source })?;
        if !output.status.success() {
            let answer = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(ProgramError::Build { folder: source_folder, answer });
        }
        for line in fs::read_to_string(source_folder.join(KEPT)).unwrap_or_default().lines() {
            self.keep(line, folder)?;
        }
        for link in links {
            symlink(file, folder.join(link)).map_err(file_error("linking", &folder.join(link)))?;
        }
        Ok(())
    }

    /// Copies a file or folder of a required module, given as `module path`.
    fn keep(&self, line: &str, folder: &Path) -> Result<(), ProgramError> {
        let source_folder = self.source_folder();
        let (module, path) = line.split_once(' ').unwrap_or((line, "."));
        let asked = Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}", module])
            .current_dir(&source_folder)
            .output()
            .map_err(|source| ProgramError::Run { folder: source_folder.clone(), source })?;
        let answer = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        if answer.is_empty() {
            let answer = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
            return Err(ProgramError::Build { folder: source_folder, answer });
        }
        let from = Path::new(&answer).join(path);
        let copied = Command::new("cp").args(["-r", "--no-preserve=mode"]).arg(&from).arg(folder).output();
        match copied {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let answer = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(file_error("copying", &from)(io::Error::other(answer)))
            }
            Err(error) => Err(file_error("copying", &from)(error)),
        }
    }

    /// Names this very build: the first 16 digits of the digest of all that goes into it.
    fn digest(&self) -> Result<String, ProgramError> {
        let folder = self.source_folder();
        let mut paths = Vec::new();
        for entry in fs::read_dir(&folder).map_err(file_error("reading", &folder))? {
            paths.push(entry.map_err(file_error("reading", &folder))?.path());
        }
        paths.sort();
        let mut digest = Sha256::new();
        digest.update(format!("{self:?}"));
        for path in paths {
            digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            digest.update(fs::read(&path).map_err(file_error("reading", &path))?);
        }
        Ok(format!("{:x}", digest.finalize())[..16].to_owned())
    }
}

/// `$XDG_CACHE_HOME/rlt/programs`, or the same below `~/.cache`.
fn cache_folder() -> Result<PathBuf, ProgramError> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("rlt/programs")).ok_or(ProgramError::NoCacheFolder)
}

fn file_error(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProgramError {
    let path = path.to_owned();
    move |source| ProgramError::File { act, path, source }
}
