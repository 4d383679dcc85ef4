//! etcd, API server, controller manager and scheduler: their flags and their files, and when they are ready.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kubeconfig::{User, kubeconfig};
use crate::options::Options;
use crate::process::{Place, Process, ProcessError};
use crate::slot::Slot;

/// Limit of a wait for a program; usually it takes a second or two, but concurrent builds use the processor.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How often readiness is requested.
const POLL: Duration = Duration::from_millis(20);

/// An error of starting the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
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
    /// A program of it does not run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The API server was not ready in time.
    #[error("the API server was not ready after {PATIENCE:?}; the end of its log:\n{log}")]
    NotReady {
        /// The last lines of the API server's log.
        log: String,
    },
}

/// The running control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    /// URL of the API server.
    pub(crate) server: String,
    /// Certificate of the authority, as PEM.
    pub(crate) authority: Vec<u8>,
    /// The administrator of the cluster.
    pub(crate) admin: User,
    /// The user of the real node.
    pub(crate) node: User,
    /// The user of kube-proxy.
    pub(crate) proxy: User,
    controllers: Vec<Controller>,
    processes: Mutex<Vec<Process>>,
}

/// Program that serves the cluster through the API server.
#[derive(Debug)]
struct Controller {
    path: PathBuf,
    flags: Vec<String>,
}

impl ControlPlane {
    /// Starts etcd and the API server, which may still be busy starting when this returns.
    pub(crate) fn start(
        slot: &Slot,
        programs: &Path,
        place: &Place,
        options: &Options,
    ) -> Result<Self, ControlPlaneError> {
        let folder = slot.folder();
        let users = Users::new(&slot.name());
        write(&folder.join("tokens.csv"), &users.token_file())?;
        let mut etcd = place.start(&programs.join("etcd"), &etcd_flags(&folder))?;
        let flags = api_server_flags(slot, options)?;
        let mut api_server = place.start(&programs.join("kube-apiserver"), &flags)?;
        let authority = wait_for_authority(&folder, &mut [&mut etcd, &mut api_server], place)?;
        let server = format!("https://{}:6443", slot.node_address());
        let mut controllers = Vec::new();
        for (program, user, flags) in [
            (
                "kube-controller-manager",
                &users.controller_manager,
                controller_manager_flags(&folder, options),
            ),
            ("kube-scheduler", &users.scheduler, scheduler_flags(options)),
        ] {
            if program == "kube-scheduler" && !options.has_scheduler {
                continue;
            }
            let path = folder.join(format!("{program}.kubeconfig"));
            write(&path, &kubeconfig(&server, &authority, &user.token, "default").to_string())?;
            let mut flags = flags;
            flags.push(format!("--kubeconfig={}", path.display()));
            controllers.push(Controller { path: programs.join(program), flags });
        }
        let Users { admin, node, proxy, .. } = users;
        let processes = Mutex::new(vec![api_server, etcd]);
        Ok(Self { server, authority, admin, node, proxy, controllers, processes })
    }

    /// Starts the controller manager and the scheduler, once the API server is ready: the controller manager
    /// ends by itself if it may not ask for the API server's health within ten seconds, and its roles are
    /// among the last things that the API server makes.
    pub(crate) fn start_controllers(&self, place: &Place) -> Result<(), ControlPlaneError> {
        for Controller { path, flags } in &self.controllers {
            self.processes().push(place.start(path, flags)?);
        }
        Ok(())
    }

    /// Waits until the API server says that it is ready and the programs beside it run.
    pub(crate) async fn ready(&self, client: &kube::Client, place: &Place) -> Result<(), ControlPlaneError> {
        let started = Instant::now();
        while !is_ready(client).await {
            for process in self.processes().iter_mut() {
                process.check()?;
            }
            if started.elapsed() > PATIENCE {
                let log = crate::process::tail(&place.logs.join("kube-apiserver.log"));
                return Err(ControlPlaneError::NotReady { log });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Fails if a program of this name has ended.
    pub(crate) fn check(&self, program: &str) -> Result<(), ProcessError> {
        let mut processes = self.processes();
        let found = processes.iter_mut().find(|process| process.name() == program);
        found.map_or(Ok(()), Process::check)
    }

    /// The id of a program's process.
    pub(crate) fn process_id(&self, program: &str) -> Option<u32> {
        self.processes().iter().find(|process| process.name() == program).map(Process::id)
    }

    /// Ends one program by SIGKILL; `false` when there is none of that name.
    pub(crate) fn kill(&self, program: &str) -> bool {
        let mut processes = self.processes();
        let found = processes.iter_mut().find(|process| process.name() == program);
        found.map(Process::kill).is_some()
    }

    /// Ends one program by SIGKILL and starts it again; `false` when there is none of that name.
    pub(crate) fn restart(&self, program: &str) -> Result<bool, ProcessError> {
        let mut processes = self.processes();
        let found = processes.iter_mut().find(|process| process.name() == program);
        found.map_or(Ok(false), |process| process.restart().map(|()| true))
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Users {
    admin: User,
    controller_manager: User,
    scheduler: User,
    node: User,
    proxy: User,
}

impl Users {
    fn new(node_name: &str) -> Self {
        Self {
            admin: User::new("admin", "system:masters"),
            controller_manager: User::new("system:kube-controller-manager", ""),
            scheduler: User::new("system:kube-scheduler", ""),
            node: User::new(&format!("system:node:{node_name}"), "system:nodes"),
            proxy: User::new("system:kube-proxy", ""),
        }
    }

    fn token_file(&self) -> String {
        [&self.admin, &self.controller_manager, &self.scheduler, &self.node, &self.proxy]
            .map(User::line)
            .concat()
    }
}

fn etcd_flags(folder: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        // What a crash of the machine would lose is a test's.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
        "--listen-client-urls=http://127.0.0.1:2379".into(),
        "--advertise-client-urls=http://127.0.0.1:2379".into(),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".into(),
        "--initial-cluster=default=http://127.0.0.1:2380".into(),
    ]
}

fn api_server_flags(slot: &Slot, options: &Options) -> Result<Vec<String>, ControlPlaneError> {
    let folder = slot.folder();
    let path = |name: &str| folder.join(name).display().to_string();
    let key = path("certificates/apiserver.key");
    let mut flags = vec![
        "--etcd-servers=http://127.0.0.1:2379".into(),
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={}", slot.node_address()),
        "--secure-port=6443".into(),
        // It makes its own certificate there; its key signs service account tokens as well.
        format!("--cert-dir={}", path("certificates")),
        format!("--service-account-key-file={key}"),
        format!("--service-account-signing-key-file={key}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        format!("--service-cluster-ip-range={}", slot.service_subnet()),
        format!("--token-auth-file={}", path("tokens.csv")),
        "--authorization-mode=Node,RBAC".into(),
        "--allow-privileged=true".into(),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--profiling=false".into(),
    ];
    flags.extend(gate_flags(options));
    if !options.served_apis.is_empty() {
        flags.push(format!("--runtime-config={}", options.served_apis.join(",")));
    }
    if options.has_audit_log {
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{ "level": "Metadata" }]
        });
        write(&folder.join("audit-policy.json"), &policy.to_string())?;
        flags.push(format!("--audit-policy-file={}", path("audit-policy.json")));
        flags.push(format!("--audit-log-path={}", path("audit.log")));
        // In MiB; by default the log is rotated at a hundred, and readers lose their position.
        flags.push("--audit-log-maxsize=100000".into());
    }
    Ok(flags)
}

fn controller_manager_flags(folder: &Path, options: &Options) -> Vec<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut flags = vec![
        "--leader-elect=false".into(),
        "--use-service-account-credentials".into(),
        format!("--service-account-private-key-file={}", path("certificates/apiserver.key")),
        format!("--root-ca-file={}", path("certificates/apiserver.crt")),
        // The defaults would hide the speed of the other components.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=1000".into(),
        "--profiling=false".into(),
    ];
    if options.fake_nodes.is_none() && !options.has_real_node {
        // A test makes and changes nodes itself. None has heartbeats.
        flags.push("--node-monitor-grace-period=1h".into());
    }
    flags.extend(gate_flags(options));
    flags
}

fn scheduler_flags(options: &Options) -> Vec<String> {
    let mut flags = vec![
        "--leader-elect=false".into(),
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=1000".into(),
        "--profiling=false".into(),
    ];
    flags.extend(gate_flags(options));
    flags
}

fn gate_flags(options: &Options) -> Option<String> {
    let gates = &options.feature_gates;
    (!gates.is_empty()).then(|| format!("--feature-gates={}", gates.join(",")))
}

/// The certificate that the API server makes for itself, as soon as it is whole.
fn wait_for_authority(
    folder: &Path,
    processes: &mut [&mut Process],
    place: &Place,
) -> Result<Vec<u8>, ControlPlaneError> {
    let path = folder.join("certificates/apiserver.crt");
    let started = Instant::now();
    loop {
        // The key is written after the certificate.
        if folder.join("certificates/apiserver.key").exists() {
            return fs::read(&path).map_err(|source| ControlPlaneError::File {
                act: "reading",
                path,
                source,
            });
        }
        for process in processes.iter_mut() {
            process.check()?;
        }
        if started.elapsed() > PATIENCE {
            let log = crate::process::tail(&place.logs.join("kube-apiserver.log"));
            return Err(ControlPlaneError::NotReady { log });
        }
        std::thread::sleep(POLL);
    }
}

async fn is_ready(client: &kube::Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
    client.request_text(request).await.is_ok_and(|answer| answer == "ok")
}

/// Writes a file that only its owner reads: most of them hold a token.
fn write(path: &Path, text: &str) -> Result<(), ControlPlaneError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let written = fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| ControlPlaneError::File { act: "writing", path: path.to_owned(), source })
}
