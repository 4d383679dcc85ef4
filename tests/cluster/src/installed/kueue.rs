//! A real Kueue: its kinds, its webhooks and its controllers, as one process beside the control plane. It
//! serves its webhooks by the certificate of the API server, which names the same address.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterError};
use crate::objects;
use crate::process::{Place, Process, ProcessError};
use crate::program::KUEUE;

/// Port of Kueue's webhooks.
const WEBHOOK_PORT: u16 = 9444;
/// Kueue's kinds with two different versions, which Kueue converts.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];
/// Longest that it may take to answer; usually it is three seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

/// An error of starting Kueue.
#[derive(Debug, thiserror::Error)]
pub enum KueueError {
    /// A file of it could not be written or read.
    #[error("{act} {path} failed")]
    File {
        /// The operation that failed.
        act: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Kueue's process could not be started, or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Kueue did not answer in time.
    #[error("Kueue did not answer within {PATIENCE:?}: {answer}; the end of its log:\n{log}")]
    NotReady {
        /// Last answer of the API server.
        answer: String,
        /// The last lines of its log.
        log: String,
    },
}

/// Installs Kueue's kinds and webhooks and starts it.
pub(crate) fn start(
    cluster: &Cluster,
    place: &Place,
    folder: &Path,
    (authority, dispatched_kinds): (&[u8], &[String]),
) -> Result<Process, ClusterError> {
    let built = KUEUE.built()?;
    let server = format!("https://{}:{WEBHOOK_PORT}", cluster.node_address());
    let authority = serde_json::to_value(k8s_openapi::ByteString(authority.to_vec())).unwrap_or_default();
    let webhooks = Webhooks { server, authority };
    let mut objects =
        vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}})];
    objects.extend(objects::read(cluster, &built.join("bases"))?.into_iter().map(|crd| webhooks.in_crd(crd)));
    let of_webhooks = objects::read(cluster, &built.join("manifests.yaml"))?;
    objects.extend(of_webhooks.into_iter().map(|configuration| webhooks.in_configuration(configuration)));
    objects::apply(cluster, &objects)?;
    objects::wait_for_kinds(cluster)?;
    let etc = folder.join("kueue-etc");
    let certificates = etc.join("upper/kueue/metrics/certs");
    for made in [&certificates, &etc.join("work")] {
        fs::create_dir_all(made).map_err(|source| file("making", made, source))?;
    }
    for (name, of_api_server) in [("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")] {
        let from = folder.join("certificates").join(of_api_server);
        fs::copy(&from, certificates.join(name)).map_err(|source| file("copying", &from, source))?;
    }
    let path = folder.join("kueue.json");
    fs::write(&path, configuration(&certificates, dispatched_kinds).to_string())
        .map_err(|source| file("writing", &path, source))?;
    let flags = [
        format!("--kubeconfig={}", cluster.kubeconfig().display()),
        format!("--config={}", path.display()),
        "--zap-log-level=2".into(),
    ];
    Ok(place.start(&with_etc(folder, &etc, &built)?, &flags)?)
}

/// A program that starts Kueue with its certificates under `/etc/kueue`, a path that cannot be configured,
/// visible to it only.
fn with_etc(folder: &Path, etc: &Path, built: &Path) -> Result<PathBuf, KueueError> {
    let programs = folder.join("kueue-program");
    let program = programs.join("kueue");
    let (etc, built) = (etc.display(), built.display());
    let mount =
        format!("mount -t overlay overlay -o lowerdir=/etc,upperdir={etc}/upper,workdir={etc}/work /etc");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c '{mount} && exec {built}/kueue \"$@\"' kueue \"$@\"\n"
    );
    let failed = |source| file("writing", &program, source);
    fs::create_dir_all(&programs).map_err(failed)?;
    fs::write(&program, script).map_err(failed)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    Ok(program)
}

/// Waits until its webhooks and controllers answer.
pub(crate) async fn ready(
    client: &kube::Client,
    kueue: &mut Process,
    place: &Place,
) -> Result<(), ClusterError> {
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "ResourceFlavor");
    let flavors: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let flavor = DynamicObject::new("probe", &ApiResource::from_gvk(&kind)).data(json!({"spec": {}}));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let started = Instant::now();
    while let Err(answer) = flavors.create(&dry_run, &flavor).await {
        kueue.check().map_err(KueueError::from)?;
        if started.elapsed() > PATIENCE {
            let log = crate::process::tail(&place.logs.join("kueue.log"));
            return Err(KueueError::NotReady { answer: answer.to_string(), log }.into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn configuration(certificates: &Path, dispatched_kinds: &[String]) -> Value {
    let dispatched: Vec<_> = dispatched_kinds.iter().map(|kind| json!({"name": kind})).collect();
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": "127.0.0.1:8086"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "0.0.0.0", "port": WEBHOOK_PORT, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": false},
        "clientConnection": {"qps": 1000, "burst": 1000},
        "featureGates": {"VisibilityOnDemand": false},
        "integrations": {"frameworks": ["batch/job"]},
        "multiKueue": {"externalFrameworks": dispatched},
    })
}

/// Address and authority by which the API server calls Kueue, which has no Service here.
struct Webhooks {
    server: String,
    authority: Value,
}

impl Webhooks {
    fn client(&self, path: &str) -> Value {
        json!({"url": format!("{}{path}", self.server), "caBundle": self.authority})
    }

    fn in_crd(&self, mut crd: Value) -> Value {
        if CONVERTED.iter().any(|kind| crd["spec"]["names"]["plural"] == *kind) {
            crd["spec"]["conversion"] = json!({
                "strategy": "Webhook",
                "webhook": {"clientConfig": self.client("/convert"), "conversionReviewVersions": ["v1"]},
            });
        }
        crd
    }

    /// Webhooks of Kueue's own kinds; those of others, such as pods, would wait for integrations that are
    /// off.
    fn in_configuration(&self, mut configuration: Value) -> Value {
        if let Some(all) = configuration.get_mut("webhooks").and_then(Value::as_array_mut) {
            all.retain(|webhook| webhook["rules"][0]["apiGroups"][0] == "kueue.x-k8s.io");
            for webhook in all {
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default().to_owned();
                webhook["clientConfig"] = self.client(&path);
            }
        }
        configuration
    }
}

fn file(act: &'static str, path: &Path, source: std::io::Error) -> KueueError {
    KueueError::File { act, path: path.to_owned(), source }
}
