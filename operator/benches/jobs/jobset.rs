//! JobSet's controller outside of the cluster, with its own roles and its webhooks enabled.
//!
//! The API server calls webhooks at the address of their Service. Here that address is this machine's, so the
//! webhooks need no changes, and the controller makes its certificates itself. It expects to find them as a
//! mounted Secret.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use rlt_cluster::JobSet;
use serde_json::json;

use crate::bench_cluster::BenchCluster;
use crate::observed::PATIENCE;
use crate::process::Process;

const NAMESPACE: &str = "jobset-system";
const ACCOUNT: &str = "jobset-controller-manager";
const SECRET: &str = "jobset-webhook-server-cert";
const WEBHOOK_SERVICE: &str = "jobset-webhook-service";
/// Folder in which the controller looks for its certificates, whatever its configuration.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";

/// Builds JobSet and applies its manifests, without the Deployment.
pub(crate) async fn install(bench: &BenchCluster) -> Result<(), String> {
    let jobset = tokio::task::block_in_place(JobSet::built).map_err(|error| error.to_string())?;
    let manifests = jobset.manifests.display().to_string();
    bench.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", &manifests]);
    bench.kubectl(&["delete", "deployment", ACCOUNT, "-n", NAMESPACE, "--cascade=foreground", "--wait"]);
    bench.kubectl(&["wait", "--for=condition=Established", "crd/jobsets.jobset.x-k8s.io", "--timeout=60s"]);
    let answer = webhook_address(bench).await;
    let taken = Command::new("ip")
        .args(["address", "add", &format!("{answer}/32"), "dev", &bench.cluster.name()])
        .output()
        .map_err(|error| error.to_string())?;
    if taken.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&taken.stderr).into_owned()) }
}

async fn webhook_address(bench: &BenchCluster) -> String {
    let services = Api::<Service>::namespaced(bench.client.clone(), NAMESPACE);
    services.get(WEBHOOK_SERVICE).await.unwrap().spec.unwrap().cluster_ip.unwrap()
}

/// Starts the controller's process, with the probes at `port`.
pub(crate) async fn start(bench: &BenchCluster, port: u16) -> Process {
    let jobset = tokio::task::block_in_place(JobSet::built).unwrap();
    let folder = bench.cluster.folder();
    let certificates = folder.join("jobset-certificates");
    std::fs::create_dir_all(&certificates).unwrap();
    let config = folder.join("jobset.json");
    let settings = json!({
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": { "leaderElect": true, "resourceNamespace": NAMESPACE },
        "webhook": { "port": 443, "host": webhook_address(bench).await, "certDir": CERTIFICATES }
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    let kubeconfig = bench.cluster.kubeconfig_of_service_account(NAMESPACE, ACCOUNT).await.unwrap();
    let log = std::fs::File::options().create(true).append(true).open(folder.join("jobset.log")).unwrap();
    let mounted = format!(
        "mkdir -p {CERTIFICATES} && mount --bind {} {CERTIFICATES} && exec \"$@\"",
        certificates.display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &mounted, "sh"])
        .arg(&jobset.program)
        .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--config={}", config.display())])
        .args([
            "--metrics-bind-address=0".to_owned(),
            format!("--health-probe-bind-address=127.0.0.1:{port}"),
        ])
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let process = Process::start(&mut command);
    mount_secret(bench, &certificates).await;
    process
}

/// Writes the Secret's keys as files, as the kubelet would, once the controller has filled it.
async fn mount_secret(bench: &BenchCluster, folder: &Path) {
    let secrets = Api::<Secret>::namespaced(bench.client.clone(), NAMESPACE);
    let begun = Instant::now();
    let data: BTreeMap<_, _> = loop {
        let data = secrets.get(SECRET).await.unwrap().data.unwrap_or_default();
        if data.contains_key("tls.crt") {
            break data;
        }
        assert!(begun.elapsed() < PATIENCE, "JobSet makes no certificates");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    for (key, bytes) in data {
        std::fs::write(folder.join(key), bytes.0).unwrap();
    }
}
