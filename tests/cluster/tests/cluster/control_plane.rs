//! The control plane on its own: it serves, clusters are separate, and nothing is left of one.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, ListParams, PostParams};
use rlt_cluster::{Cluster, Options, Shared, can_run, own_cluster};
use serde_json::json;

use crate::PATIENCE;

static CLUSTER: Shared = Shared::new(|| Options::control_plane().with_audit_log().with_gang_scheduling());

/// Waits until `holds` returns true; fails with `what` after [`PATIENCE`].
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "a": "b" } })).unwrap()
}

#[tokio::test]
async fn objects_are_kept_and_pods_wait_for_a_node() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("objects").await.unwrap();
    let client = cluster.client().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let pod = json!({
        "metadata": { "name": "waits" },
        "spec": { "containers": [{ "name": "main", "image": "rlt.local/none" }] }
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let reason = async || {
        let status = pods.get("waits").await.unwrap().status.unwrap();
        status.conditions.unwrap_or_default().into_iter().find_map(|condition| condition.reason)
    };
    until("the pod is unschedulable", async || reason().await.as_deref() == Some("Unschedulable")).await;
}

#[tokio::test]
async fn a_service_account_may_do_what_its_roles_say() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("roles").await.unwrap();
    let account = cluster.client_of_service_account(&namespace, "reader").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(account, &namespace);
    let refused = pods.list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");
    let subject = format!("{namespace}:reader");
    let bind = ["create", "rolebinding", "reads", "--clusterrole=view", "--serviceaccount", &subject];
    assert!(cluster.kubectl().args(bind).args(["-n", &namespace]).status().unwrap().success());
    until("the role counts", async || pods.list(&ListParams::default()).await.is_ok()).await;
}

#[tokio::test]
async fn calls_are_counted_by_user() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("calls").await.unwrap();
    let account = cluster.client_of_service_account(&namespace, "caller").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(account, &namespace);
    for _ in 0..3 {
        pods.get("none").await.unwrap_err();
    }
    let user = format!("system:serviceaccount:{namespace}:caller");
    let calls: Vec<_> = cluster.calls().unwrap().into_iter().filter(|call| call.user == user).collect();
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call.verb == "get" && call.resource == "pods" && call.code == 403));
}

/// The controller manager ends if its roles are missing for ten seconds, however long the API server takes.
#[tokio::test]
async fn controllers_start_once_the_api_server_has_made_their_roles() {
    let Some(cluster) = CLUSTER.get() else { return };
    for user in ["system:kube-controller-manager", "system:kube-scheduler"] {
        let first = async || cluster.calls().unwrap().into_iter().find(|call| call.user == user);
        until("a call", async || first().await.is_some()).await;
        let first = first().await.unwrap();
        assert!((200..300).contains(&first.code), "{first:?}");
    }
}

#[tokio::test]
async fn gates_are_open_and_their_api_is_served() {
    let Some(cluster) = CLUSTER.get() else { return };
    let client = cluster.client().await.unwrap();
    let served = client.list_api_group_resources("scheduling.k8s.io/v1alpha2").await.unwrap();
    let kinds: Vec<_> = served.resources.iter().map(|resource| resource.kind.as_str()).collect();
    assert!(kinds.contains(&"PodGroup") && kinds.contains(&"Workload"), "{kinds:?}");
}

#[tokio::test]
async fn helm_installs_a_chart_and_takes_it_away() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("charts").await.unwrap();
    let chart = tempfile::tempdir().unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    std::fs::write(chart.path().join("Chart.yaml"), "apiVersion: v2\nname: tiny\nversion: 0.1.0\n").unwrap();
    let template =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-helm}\ndata: {a: '{{ .Values.a }}'}\n";
    std::fs::write(chart.path().join("templates/map.yaml"), template).unwrap();
    let helm = |arguments: &[&str]| {
        let output = cluster.helm().unwrap().args(arguments).args(["-n", &namespace]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    helm(&["install", "tiny", &chart.path().display().to_string(), "--set", "a=b"]);
    assert_eq!(maps.get("from-helm").await.unwrap().data.unwrap()["a"], "b");
    helm(&["uninstall", "tiny"]);
    assert!(maps.get_opt("from-helm").await.unwrap().is_none());
}

#[test]
fn under_ci_a_test_that_can_not_run_fails() {
    if !can_run(&Options::control_plane()) {
        return;
    }
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.arg("a_second_cluster_meets_no_other").env("CI", "true").env("PATH", "/nowhere");
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("a test must not be skipped"), "{said}");
}

/// One second cluster for all that needs one: its start takes more of the processor than what is tested.
#[tokio::test]
async fn a_second_cluster_meets_no_other_survives_a_restart_and_leaves_nothing() {
    let Some(shared) = CLUSTER.get() else { return };
    let Some(own) = own_cluster(&Options::control_plane().without_scheduler()) else { return };
    two_clusters_at_once_do_not_meet(shared, &own).await;
    an_api_server_that_restarts_keeps_its_objects_and_its_clients(&own).await;
    a_dropped_cluster_leaves_no_processes_or_files(own).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(shared.client().await.unwrap());
    assert!(maps.get_opt("here").await.unwrap().is_some(), "the first cluster is still there");
}

async fn two_clusters_at_once_do_not_meet(shared: &Cluster, own: &Cluster) {
    assert_ne!(shared.name(), own.name());
    let here: Api<ConfigMap> = Api::default_namespaced(shared.client().await.unwrap());
    let there: Api<ConfigMap> = Api::default_namespaced(own.client().await.unwrap());
    here.create(&PostParams::default(), &config_map("here")).await.unwrap();
    there.create(&PostParams::default(), &config_map("there")).await.unwrap();
    assert!(here.get_opt("there").await.unwrap().is_none());
    assert!(there.get_opt("here").await.unwrap().is_none());
}

async fn an_api_server_that_restarts_keeps_its_objects_and_its_clients(cluster: &Cluster) {
    // The controller manager runs then. While it starts it ends if an API server that has just started does
    // not know its roles yet.
    let namespace = cluster.namespace("restart").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let made = maps.create(&PostParams::default(), &config_map("kept")).await.unwrap();
    let before = cluster.process_id("kube-apiserver");
    assert!(cluster.restart("kube-apiserver").await.unwrap());
    assert_ne!(cluster.process_id("kube-apiserver"), before);
    // The certificate is the same, so the client is too.
    assert_eq!(maps.get("kept").await.unwrap().metadata.uid, made.metadata.uid);
    assert!(!cluster.restart("none").await.unwrap());
}

async fn a_dropped_cluster_leaves_no_processes_or_files(cluster: Cluster) {
    let client = cluster.client().await.unwrap();
    Api::<Namespace>::all(client.clone()).get("default").await.unwrap();
    let (name, kubeconfig) = (cluster.name(), cluster.kubeconfig());
    drop(cluster);
    assert!(!kubeconfig.parent().unwrap().exists());
    assert!(!std::path::Path::new("/run/netns").join(&name).exists());
    assert!(!std::path::Path::new("/sys/class/net").join(&name).exists());
    Api::<Namespace>::all(client).get("default").await.unwrap_err();
}
