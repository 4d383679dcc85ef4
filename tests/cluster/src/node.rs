//! A real node: containerd, kubelet, service addresses and names. Pods on it are processes of this machine.
//!
//! Everything it keeps is in the cluster's folder, its control groups below the cluster's name, its network
//! in the cluster's namespace; so the sweep that ends a control plane ends a node too.

mod containerd;
mod control_groups;
mod kubelet;
mod names;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1;
use kube::api::Api;

use crate::control_plane::ControlPlane;
use crate::kubeconfig::kubeconfig;
use crate::process::{Place, Process, ProcessError};
use crate::program::{COREDNS, PROBE, ProgramError};
use crate::slot::Slot;

/// Programs of the system that a node is made of, beside those any cluster needs.
pub(crate) const TOOLS: [&str; 6] = ["tar", "containerd", "ctr", "runc", "nft", "conntrack"];
/// Image of the program in `programs/probe`, which every real node has.
pub const PROBE_IMAGE: &str = "rlt.local/probe:1";
/// Longest that a node may take to become ready; five to eight seconds on two quiet cores.
const PATIENCE: Duration = Duration::from_secs(180);

/// An error of starting a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A program of it could not be built.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A program of it does not run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file, folder or control group could not be made.
    #[error("{act} {path} failed")]
    File {
        /// The operation that failed.
        act: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An image could not be loaded.
    #[error("loading the image {path} failed: {answer}")]
    Image {
        /// Path of the archive.
        path: PathBuf,
        /// Output of the program that loads images.
        answer: String,
    },
    /// A part of the node was not ready in time.
    #[error("the {what} was not ready after {PATIENCE:?}; the end of its log:\n{log}")]
    NotReady {
        /// Name of the part.
        what: &'static str,
        /// The last lines of its log.
        log: String,
    },
}

/// The running node.
#[derive(Debug)]
pub(crate) struct RealNode {
    socket: PathBuf,
    processes: Vec<Process>,
}

impl RealNode {
    /// Starts containerd with the sandbox image, kubelet, kube-proxy and CoreDNS.
    pub(crate) fn start(
        slot: &Slot,
        programs: &Path,
        place: &Place,
        control_plane: &ControlPlane,
    ) -> Result<Self, NodeError> {
        let site = Site { slot, programs, place, folder: slot.folder().join("node") };
        make_folder(&site.folder)?;
        control_groups::make(&slot.name())?;
        let mut containerd = containerd::start(&site)?;
        let socket = containerd::wait(&site, &mut containerd)?;
        load_image(&socket, &containerd::probe_image(&site, &PROBE.built()?)?)?;
        let kubelet =
            kubelet::start(&site, &socket, &site.kubeconfig("kubelet", control_plane, &control_plane.node)?)?;
        let proxy =
            names::start_proxy(&site, &site.kubeconfig("proxy", control_plane, &control_plane.proxy)?)?;
        let admin = site.kubeconfig("coredns", control_plane, &control_plane.admin)?;
        let names = names::start_dns(&site, &COREDNS.built()?, &admin)?;
        Ok(Self { socket, processes: vec![kubelet, containerd, proxy, names] })
    }

    /// Waits until the node takes pods.
    pub(crate) async fn ready(
        &mut self,
        client: &kube::Client,
        slot: &Slot,
        place: &Place,
    ) -> Result<(), NodeError> {
        let nodes: Api<v1::Node> = Api::all(client.clone());
        let started = Instant::now();
        loop {
            let node = nodes.get_opt(&slot.name()).await.ok().flatten();
            if node.as_ref().is_some_and(crate::fake_nodes::is_open) {
                return Ok(());
            }
            for process in &mut self.processes {
                process.check()?;
            }
            if started.elapsed() > PATIENCE {
                let log = crate::process::tail(&place.logs.join("kubelet.log"));
                return Err(NodeError::NotReady { what: "node", log });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Loads an image from an OCI archive under the name that the archive gives it.
    pub(crate) fn load(&self, archive: &Path) -> Result<(), NodeError> {
        load_image(&self.socket, archive)
    }

    /// Ends one program by SIGKILL; `false` when there is none of that name.
    pub(crate) fn kill(&mut self, program: &str) -> bool {
        let found = self.processes.iter_mut().find(|process| process.name() == program);
        found.map(Process::kill).is_some()
    }
}

/// Folders and names from which the parts of a node are started.
struct Site<'a> {
    slot: &'a Slot,
    programs: &'a Path,
    place: &'a Place,
    folder: PathBuf,
}

impl Site<'_> {
    /// The path of a file or folder of the node.
    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, NodeError> {
        let path = self.folder.join(name);
        match std::fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(NodeError::File { act: "writing", path, source }),
        }
    }

    fn kubeconfig(
        &self,
        name: &str,
        control_plane: &ControlPlane,
        user: &crate::kubeconfig::User,
    ) -> Result<PathBuf, NodeError> {
        let ControlPlane { server, authority, .. } = control_plane;
        let text = kubeconfig(server, authority, &user.token, "default").to_string();
        self.write(&format!("{name}.kubeconfig"), &text)
    }
}

fn make_folder(path: &Path) -> Result<(), NodeError> {
    std::fs::create_dir_all(path).map_err(|source| NodeError::File {
        act: "making",
        path: path.to_owned(),
        source,
    })
}

fn load_image(socket: &Path, archive: &Path) -> Result<(), NodeError> {
    let failed = |answer: String| NodeError::Image { path: archive.to_owned(), answer };
    let output = Command::new("ctr")
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(archive)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
