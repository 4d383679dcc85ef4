//! A real Argo CD as far as it syncs: its kinds, its application controller and its repository server, as
//! processes beside the control plane. Applications are in git repositories on this machine's disk; there
//! are no logins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterError};
use crate::objects;
use crate::process::{Place, Process};
use crate::program::{ARGO_CD, HELM};

/// Argo CD's namespace, in which Applications are.
pub(crate) const NAMESPACE: &str = "argocd";
const REDIS: &str = "127.0.0.1:6379";
const REPOSITORIES: &str = "127.0.0.1:8081";

/// Installs Argo CD's kinds with these settings in `argocd-cm`, besides those of its own manifests, and
/// starts it.
pub(crate) fn start(
    cluster: &Cluster,
    place: &Place,
    folder: &Path,
    settings: &BTreeMap<String, String>,
) -> Result<Vec<Process>, ClusterError> {
    let built = ARGO_CD.built()?;
    for definition in ["application-crd.yaml", "appproject-crd.yaml"] {
        objects::apply(cluster, &objects::read(cluster, &built.join(definition))?)?;
    }
    objects::wait_for_kinds(cluster)?;
    let mut all_settings = defaults(cluster, &built.join("argocd-cm.yaml"))?;
    all_settings.extend(settings.clone());
    objects::apply(cluster, &installation(&all_settings))?;
    let environment = environment(cluster, &folder.join("argocd"))?;
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let start = |program: &str, flags: &[&str]| {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        place.start_with(&built.join(program), &flags, &environment)
    };
    let redis = format!("--redis={REDIS}");
    Ok(vec![
        start("argocd-redis", &[&format!("--address={REDIS}")])?,
        start(
            "argocd-repo-server",
            &[&redis, "--disable-tls", "--address=127.0.0.1", "--port=8081", "--metrics-address=127.0.0.1"],
        )?,
        start(
            "argocd-application-controller",
            &[
                &redis,
                &format!("--repo-server={REPOSITORIES}"),
                "--repo-server-plaintext",
                &format!("--namespace={NAMESPACE}"),
                "--status-processors=2",
                "--operation-processors=2",
            ],
        )?,
    ])
}

/// The settings that Argo CD's own manifests bring.
fn defaults(cluster: &Cluster, path: &Path) -> Result<BTreeMap<String, String>, ClusterError> {
    let map = objects::read(cluster, path)?.pop().unwrap_or_default();
    let data = map["data"].as_object().cloned().unwrap_or_default();
    let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
    Ok(data.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Objects that Argo CD reads in its own namespace.
fn installation(settings: &BTreeMap<String, String>) -> Vec<Value> {
    let part = json!({"app.kubernetes.io/part-of": "argocd"});
    let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE, "labels": part});
    let map = |name: &str, data: &BTreeMap<String, String>| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name), "data": data});
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        map("argocd-cm", settings),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata("argocd-secret"),
            "stringData": {"server.secretkey": "of a server without logins"},
        }),
        json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": metadata("default"),
            "spec": {
                "sourceRepos": ["*"], "destinations": [{"namespace": "*", "server": "*"}],
                "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
            },
        }),
    ];
    let others = ["cmd-params", "gpg-keys", "rbac", "ssh-known-hosts", "tls-certs"];
    objects.extend(others.map(|name| map(&format!("argocd-{name}-cm"), &BTreeMap::new())));
    objects
}

/// Variables of its programs, whose files all are in `folder`.
fn environment(cluster: &Cluster, folder: &Path) -> Result<Vec<(&'static str, String)>, ClusterError> {
    for made in ["tls", "ssh", "tmp"] {
        let path = folder.join(made);
        fs::create_dir_all(&path).map_err(|source| ClusterError::File { act: "making", path, source })?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(HELM.built()?).chain(std::env::split_paths(&path)));
    let text = |path: PathBuf| path.display().to_string();
    Ok(vec![
        ("KUBECONFIG", text(cluster.kubeconfig())),
        // The cluster of the kubeconfig is the one that it runs in.
        ("ARGOCD_FAKE_IN_CLUSTER", "true".into()),
        ("ARGOCD_GPG_ENABLED", "false".into()),
        ("ARGOCD_TLS_DATA_PATH", text(folder.join("tls"))),
        ("ARGOCD_SSH_DATA_PATH", text(folder.join("ssh"))),
        // It calls git and helm; the user's own settings must not apply.
        ("PATH", path.unwrap_or_default().to_string_lossy().into_owned()),
        ("HOME", text(folder.to_owned())),
        ("TMPDIR", text(folder.join("tmp"))),
    ])
}
