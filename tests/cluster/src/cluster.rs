//! A running cluster: the handle of a test, and its operations.

mod clients;
mod reader;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

pub use reader::Reader;

use crate::argo_cd;
use crate::audit::{self, Call, CallLog};
use crate::control_plane::{ControlPlane, ControlPlaneError, PATIENCE};
use crate::fake_nodes::{self, FakeNodes};
use crate::kueue::{self, KueueError};
use crate::network::{self, NetworkError};
use crate::node::{NodeError, RealNode};
use crate::objects::ObjectsError;
use crate::options::Options;
use crate::process::{Place, Process, ProcessError};
use crate::program::{HELM, KUBERNETES, KWOK, ProgramError};
use crate::slot::{Slot, SlotError};

/// An error of starting a cluster, or of a call to it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A program of it could not be built.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// There is no place for it.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The cluster's network could not be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The control plane does not serve.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// The real node does not run.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Kueue does not run.
    #[error(transparent)]
    Kueue(#[from] KueueError),
    /// Objects of a program beside the control plane were not taken.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// A program beside the control plane does not run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The cluster has no real node, and so no place for images.
    #[error("this cluster has no real node to load an image into")]
    NoRealNode,
    /// A file of it could not be written or read.
    #[error("{act} {path} failed")]
    File {
        /// The operation that failed.
        act: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The controller manager made no account for a namespace's pods in time.
    #[error(
        "{namespace} had no service account after {PATIENCE:?}; the end of the controller manager's log:\n{log}"
    )]
    NoAccount {
        /// Name of the namespace.
        namespace: String,
        /// The last lines of the controller manager's log.
        log: String,
    },
    /// No client could be made from its kubeconfig.
    #[error("the kubeconfig is not one a client can be made of")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The API server refused a call of the harness.
    #[error("the API server refused the call")]
    Call(#[from] kube::Error),
    /// The thread that waits for the cluster could not run.
    #[error("no runtime to wait for the cluster with")]
    Runtime(#[source] io::Error),
    /// No proxy could be started.
    #[error("starting a proxy on loopback failed")]
    Proxy(#[source] io::Error),
    /// The kubeconfig or token is malformed.
    #[error("the API server's answer lacks {field}")]
    Answer {
        /// Name of the missing field.
        field: &'static str,
    },
}

/// A cluster that this process owns. It ends when it is dropped, and when the process ends for any reason.
#[derive(Debug)]
pub struct Cluster {
    control_plane: ControlPlane,
    real_node: Option<RealNode>,
    kwok: Option<Process>,
    kueue: Option<Process>,
    argo_cd: Vec<Process>,
    programs: PathBuf,
    num_namespaces: AtomicU32,
    has_audit_log: bool,
    /// Last, so that the network outlives the programs.
    slot: Slot,
}

impl Cluster {
    /// Starts a cluster and returns when its API server is ready; blocks for a second or two, and on the very
    /// first time for as long as Kubernetes takes to build.
    ///
    /// # Errors
    /// When a program does not build, start or get ready, or the network can not be made.
    pub fn start(options: &Options) -> Result<Self, ClusterError> {
        let programs = KUBERNETES.built()?;
        let slot = Slot::claim()?;
        network::make(&slot)?;
        let place = place(&slot)?;
        let control_plane = ControlPlane::start(&slot, &programs, &place, options)?;
        let mut cluster = Self {
            control_plane,
            real_node: None,
            kwok: None,
            kueue: None,
            argo_cd: Vec::new(),
            programs,
            num_namespaces: AtomicU32::new(0),
            has_audit_log: options.has_audit_log,
            slot,
        };
        cluster.write_admin_kubeconfig()?;
        if options.has_real_node {
            let Self { slot, programs, control_plane, .. } = &cluster;
            cluster.real_node = Some(RealNode::start(slot, programs, &place, control_plane)?);
        }
        blocking(cluster.ready(&place, options))?;
        Ok(cluster)
    }

    async fn ready(&mut self, place: &Place, options: &Options) -> Result<(), ClusterError> {
        let client = self.client().await?;
        self.control_plane.ready(&client, place).await?;
        self.control_plane.start_controllers(place)?;
        if let Some(nodes) = &options.fake_nodes {
            let mut kwok = self.start_kwok(place, nodes)?;
            nodes.make(&client, &mut kwok).await?;
            self.kwok = Some(kwok);
        }
        if options.has_kueue {
            let authority = &self.control_plane.authority;
            let mut kueue =
                kueue::start(self, place, &self.slot.folder(), (authority, &options.dispatched_kinds))?;
            kueue::ready(&client, &mut kueue, place).await?;
            self.kueue = Some(kueue);
        }
        if let Some(settings) = &options.argo_cd {
            self.argo_cd = argo_cd::start(self, place, &self.slot.folder(), settings)?;
        }
        if let Some(node) = &mut self.real_node {
            node.ready(&client, &self.slot, place).await?;
        }
        Ok(())
    }

    fn start_kwok(&self, place: &Place, nodes: &FakeNodes) -> Result<Process, ClusterError> {
        let stages = self.slot.folder().join("stages.yaml");
        write(&stages, &nodes.stages())?;
        let flags = fake_nodes::flags(&self.kubeconfig(), &stages);
        Ok(place.start(&KWOK.built()?.join("kwok"), &flags)?)
    }

    /// Loads an image into the real node from an OCI archive, under the name that the archive gives it. Pods
    /// that use it set `imagePullPolicy: IfNotPresent` or `Never`.
    ///
    /// # Errors
    /// When the cluster has no real node, or containerd refuses the archive.
    pub fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        Ok(self.real_node.as_ref().ok_or(ClusterError::NoRealNode)?.load(archive)?)
    }

    /// The kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.slot.folder().join("admin.kubeconfig")
    }

    /// `kubectl` as the administrator.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// `helm` as the administrator; built on first use.
    ///
    /// # Errors
    /// When it does not build.
    pub fn helm(&self) -> Result<Command, ClusterError> {
        let mut command = Command::new(HELM.built()?.join("helm"));
        command.env("KUBECONFIG", self.kubeconfig());
        Ok(command)
    }

    /// A driver of devices (dynamic resource allocation) for the real node, as the administrator. Pods that
    /// claim `devices` get them once it has prepared the claim, for which it keeps a file of the claim's name
    /// in `folder`.
    pub fn device_driver(&self, driver: &str, folder: &Path, devices: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("device-driver"));
        let kubelet = self.slot.folder().join("node/kubelet");
        command.arg(driver).arg(self.name()).arg(kubelet).arg(folder).args(devices);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Makes a namespace that no other test has, named after `purpose`, and waits until pods can be made in
    /// it.
    ///
    /// # Errors
    /// When the API server refuses it, or the controller manager has ended or does not make the account of
    /// its pods.
    pub async fn namespace(&self, purpose: &str) -> Result<String, ClusterError> {
        let client = self.client().await?;
        let name = format!("{purpose}-{}", self.num_namespaces.fetch_add(1, Ordering::Relaxed));
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        // Pods are refused until the controller manager has made the account they run as.
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        let (started, program) = (Instant::now(), "kube-controller-manager");
        while accounts.get_opt("default").await?.is_none() {
            self.control_plane.check(program)?;
            if started.elapsed() > PATIENCE {
                return Err(ClusterError::NoAccount { namespace: name, log: self.log(program) });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(name)
    }

    /// Every call the API server answered so far, oldest first; none unless the options ask for the audit
    /// log.
    ///
    /// # Errors
    /// When the log can not be read.
    pub fn calls(&self) -> Result<Vec<Call>, ClusterError> {
        if !self.has_audit_log {
            return Ok(Vec::new());
        }
        let path = self.slot.folder().join("audit.log");
        audit::read(&path).map_err(|source| ClusterError::File { act: "reading", path, source })
    }

    /// A reader of the log of calls, from its begin; without the audit log there never is anything to read.
    pub fn call_log(&self) -> CallLog {
        CallLog::new(self.slot.folder().join("audit.log"))
    }

    /// The id of a program's process, such as that of `kube-apiserver`; `None` when there is none of that
    /// name.
    pub fn process_id(&self, program: &str) -> Option<u32> {
        let kwok = self.kwok.iter().find(|kwok| kwok.name() == program).map(Process::id);
        kwok.or_else(|| self.control_plane.process_id(program))
    }

    /// A folder for files of programs beside the cluster, which is deleted with it.
    pub fn folder(&self) -> PathBuf {
        self.slot.folder()
    }

    /// Address at which the cluster's pods and API server (webhooks) reach a server of this process, if it
    /// listens on all addresses or on this one.
    pub fn host_address(&self) -> Ipv4Addr {
        self.slot.host_address()
    }

    /// Address of the control plane, and of the real node where there is one.
    pub fn node_address(&self) -> Ipv4Addr {
        self.slot.node_address()
    }

    /// The cluster's name on this machine, which is its network namespace's too.
    pub fn name(&self) -> String {
        self.slot.name()
    }

    /// The end of a program's log, such as that of `kube-scheduler`.
    pub fn log(&self, program: &str) -> String {
        crate::process::tail(&self.slot.folder().join("logs").join(format!("{program}.log")))
    }

    /// Ends a program of the cluster by SIGKILL; `false` when there is none of that name.
    pub fn kill(&mut self, program: &str) -> bool {
        let beside = self.kwok.iter_mut().chain(&mut self.kueue).chain(&mut self.argo_cd);
        if let Some(process) = beside.into_iter().find(|process| process.name() == program) {
            process.kill();
            return true;
        }
        self.control_plane.kill(program) || self.real_node.as_mut().is_some_and(|node| node.kill(program))
    }

    /// Ends a program of the control plane by SIGKILL, starts it again with the same arguments, and waits
    /// until the API server is ready; `false` when there is none of that name.
    ///
    /// # Errors
    /// When the program does not start, or the API server does not get ready.
    pub async fn restart(&self, program: &str) -> Result<bool, ClusterError> {
        if !self.control_plane.restart(program)? {
            return Ok(false);
        }
        self.control_plane.ready(&self.client().await?, &place(&self.slot)?).await?;
        Ok(true)
    }
}

fn place(slot: &Slot) -> Result<Place, ClusterError> {
    let logs = slot.folder().join("logs");
    fs::create_dir_all(&logs).map_err(|source| ClusterError::File {
        act: "making",
        path: logs.clone(),
        source,
    })?;
    Ok(Place { netns: slot.name(), logs })
}

fn write(path: &Path, text: &str) -> Result<(), ClusterError> {
    fs::write(path, text).map_err(|source| ClusterError::File {
        act: "writing",
        path: path.to_owned(),
        source,
    })
}

/// Runs a future to its end on a thread of its own, so that a test that has a runtime already may call it
/// too.
fn blocking<T: Send>(
    future: impl Future<Output = Result<T, ClusterError>> + Send,
) -> Result<T, ClusterError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(ClusterError::Runtime)?.block_on(future)
    };
    std::thread::scope(|scope| {
        scope
            .spawn(run)
            .join()
            .unwrap_or_else(|_| Err(ClusterError::Runtime(io::Error::other("it panicked"))))
    })
}
