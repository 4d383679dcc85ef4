//! Cluster in which one contestant is installed, and the operations of a benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client, Config};
use rlt_cluster::{Cluster, FakeNodes, HeldPort, Options};
use rlt_operator::client::{CallRate, Limiter, MAX_IN_FLIGHT, client};
use rlt_operator::lease::Term;
use rlt_operator::metrics::Metrics;

use crate::contestant::{Contestant, Gang};
use crate::jobset;
use crate::observed::{Observed, PATIENCE};
use crate::process::{Process, peak_kib};
use crate::raw::IN_FLIGHT;

/// Name of the operator's namespace and of its service account.
const OPERATOR: &str = "rl-operator";
/// Number of nodes, enough for a thousand jobs of eight pods.
const NUM_NODES: usize = 32;
const PODS_PER_NODE: &str = "320";

/// Cluster in which one contestant is installed.
pub(crate) struct BenchCluster {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) contestant: Contestant,
    pub(crate) namespace: String,
    /// Processes of the contestant's controller, the leader first.
    pub(crate) controllers: Vec<Process>,
    /// Memory of the controller before the first job, in KiB.
    pub(crate) kib_at_start: f64,
    /// Ports of the controllers' probes, which nobody else is given.
    ports: Vec<HeldPort>,
    num_names: usize,
}

impl BenchCluster {
    /// Starts the cluster and the contestant; returns the reason where that is impossible.
    pub(crate) async fn start(contestant: Contestant) -> Result<Self, String> {
        let mut nodes = FakeNodes::new(NUM_NODES);
        nodes
            .capacity
            .extend([("cpu", "64"), ("pods", PODS_PER_NODE)].map(|(name, much)| (name.into(), much.into())));
        let options = Options::control_plane().with_audit_log().with_fake_nodes(nodes);
        if let Some(reason) = options.unavailable() {
            return Err(reason);
        }
        let cluster =
            tokio::task::block_in_place(|| Cluster::start(&options)).map_err(|error| error.to_string())?;
        let client = unlimited(&cluster).await;
        let namespace = cluster.namespace("crowd").await.map_err(|error| error.to_string())?;
        let mut bench = Self {
            cluster,
            client,
            contestant,
            namespace,
            controllers: Vec::new(),
            kib_at_start: 0.0,
            ports: Vec::new(),
            num_names: 0,
        };
        bench.install().await?;
        bench.kib_at_start = peak_kib(bench.own_process());
        Ok(bench)
    }

    async fn install(&mut self) -> Result<(), String> {
        match self.contestant {
            Contestant::Job | Contestant::TrainerJob => {}
            Contestant::Operator => {
                self.kubectl(&["apply", "-k", "charts/kustomize"]);
                // In the benchmark the operator runs outside of the cluster.
                self.kubectl(&[
                    "delete",
                    "deployment",
                    OPERATOR,
                    "-n",
                    OPERATOR,
                    "--cascade=foreground",
                    "--wait",
                ]);
                let definition = "crd/rltrainingjobs.rltraining.dev";
                self.kubectl(&["wait", "--for=condition=Established", definition, "--timeout=60s"]);
                self.start_controller().await;
            }
            Contestant::JobSet => {
                jobset::install(self).await?;
                self.start_controller().await;
            }
        }
        Ok(())
    }

    /// Starts another process of the controller, and waits until it is ready.
    pub(crate) async fn start_controller(&mut self) {
        let held = HeldPort::on([127, 0, 0, 1]).unwrap();
        let port = held.number();
        let process = match self.contestant {
            Contestant::Operator => self.operator(port).await,
            Contestant::JobSet => jobset::start(self, port).await,
            Contestant::Job | Contestant::TrainerJob => return,
        };
        let begun = Instant::now();
        while !is_ready(port).await {
            assert!(begun.elapsed() < PATIENCE, "the controller of {} is not ready", self.contestant.name());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.controllers.push(process);
        self.ports.push(held);
    }

    /// Starts the operator with the chart's settings.
    async fn operator(&self, port: u16) -> Process {
        let kubeconfig = self.cluster.kubeconfig_of_service_account(OPERATOR, OPERATOR).await.unwrap();
        let log = std::fs::File::create(self.cluster.folder().join(format!("operator-{port}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlt-operator"));
        command
            .args(["--concurrency=128", "--calls-per-second=1000", "--call-burst=2000"])
            .args(["--lease=rl-operator", "--channel-service=rl-operator-channel"])
            .arg(format!("--listen=127.0.0.1:{port}"))
            .arg("--channel-listen=127.0.0.1:0")
            .envs([("POD_NAMESPACE", OPERATOR), ("POD_IP", "10.0.0.7"), ("RUST_LOG", "info")])
            .env("RLT_TRAINER_IMAGE", "rlt.local/none")
            .env("KUBECONFIG", kubeconfig)
            .stderr(log);
        Process::start(&mut command)
    }

    /// Id of the process whose costs count as the contestant's own: its controller, or without one
    /// Kubernetes' controller manager.
    pub(crate) fn own_process(&self) -> u32 {
        let of_kubernetes = || self.cluster.process_id("kube-controller-manager").unwrap();
        self.controllers.first().map_or_else(of_kubernetes, Process::id)
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let answer = self.cluster.kubectl().args(arguments).current_dir(root()).output().unwrap();
        assert!(answer.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).unwrap()
    }

    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        self.jobs_in(&self.namespace)
    }

    pub(crate) fn jobs_in(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.contestant.resource())
    }

    /// Returns the API of the jobs in all namespaces.
    pub(crate) fn jobs_everywhere(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.contestant.resource())
    }

    /// Creates namespaces, 16 at a time.
    pub(crate) async fn make_namespaces(&self, num: usize) -> Vec<String> {
        let made = stream::iter((0..num).map(|_| self.cluster.namespace("team"))).buffer_unordered(IN_FLIGHT);
        made.map(Result::unwrap).collect().await
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Starts to read the calls in the benchmark's namespace.
    pub(crate) fn observe(&self) -> Observed {
        Observed::begin(self.cluster.call_log(), [self.namespace.clone()])
    }

    /// Returns a name that no job had before.
    pub(crate) fn new_name(&mut self) -> String {
        self.num_names += 1;
        format!("gang-{}", self.num_names)
    }

    /// Posts a gang in the benchmark's namespace.
    pub(crate) async fn post(&self, name: &str, gang: Gang) {
        self.post_in(&self.namespace, name, gang).await;
    }

    /// Posts a gang in another namespace.
    pub(crate) async fn post_in(&self, namespace: &str, name: &str, gang: Gang) {
        let manifest = self.contestant.manifest(name, gang);
        self.jobs_in(namespace).create(&PostParams::default(), &manifest).await.unwrap();
    }

    /// Deletes a gang and waits until none of its objects is left.
    pub(crate) async fn delete(&self, name: &str) {
        let mut observed = self.observe();
        self.jobs().delete(name, &DeleteParams::background()).await.unwrap();
        self.gone().await;
        observed.quiet().await;
    }

    /// Deletes all gangs and waits until none of their objects is left.
    pub(crate) async fn clear(&self) {
        self.jobs().delete_collection(&DeleteParams::background(), &ListParams::default()).await.unwrap();
        self.gone().await;
        self.observe().quiet().await;
    }

    /// Waits until no pod is left.
    pub(crate) async fn gone(&self) {
        let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &self.namespace);
        let begun = Instant::now();
        while !pods.list(&ListParams::default().limit(1)).await.unwrap().items.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "pods are left");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Returns a client with all rights and without a rate limit.
async fn unlimited(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let limiter = Limiter::new(CallRate { per_second: 1e6, burst: 1e6 }, MAX_IN_FLIGHT);
    client(config, &limiter, &Metrics::default(), &Term::default()).unwrap()
}

/// Root folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

async fn is_ready(port: u16) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: controller\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    ask.await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
