//! A job on a real node, with the real trainer in its pods.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "cluster/test_namespace.rs"]
#[expect(dead_code, reason = "the kubelet's part is played by the kubelet here")]
mod test_namespace;

#[path = "real_node/chaos.rs"]
mod chaos;
#[path = "real_node/chart.rs"]
mod chart;
#[path = "real_node/container.rs"]
mod container;
#[path = "real_node/device.rs"]
mod device;
#[path = "real_node/examples.rs"]
mod examples;
#[path = "real_node/folder.rs"]
mod folder;
#[path = "real_node/gang.rs"]
mod gang;
#[path = "real_node/processes.rs"]
mod processes;
#[path = "real_node/requested.rs"]
mod requested;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_cluster::{Options, Shared};
use rlt_objects::build::PodSettings;
use rlt_objects::privileges::{Privilege, Privileges};
use serde_json::{Value, json};
use test_namespace::TestNamespace;

static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap"));

/// Longest time that a test waits for a training in pods. A short one takes ten seconds on two quiet cores,
/// and took more than 120 beside other programs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Seed of the plan of faults.
const CHAOS_SEED: u64 = 1;

/// The quickstart, shortened to some steps.
fn short() -> Value {
    json!({
        "algorithm": {"coldStart": {"steps": 10}},
        "training": {"steps": 5, "evaluateEvery": 5, "schedule": {"warmupSteps": 1}},
    })
}

async fn test_namespace(purpose: &str) -> Option<TestNamespace> {
    let test = TestNamespace::on(CLUSTER.get()?, purpose).await;
    let label = ["label", "namespace", &test.namespace, "pod-security.kubernetes.io/enforce=restricted"];
    assert!(test.cluster.kubectl().args(label).output().unwrap().status.success());
    test.cluster.load_image(&rlt_tests::test_image("rlt-trainer")).unwrap();
    Some(test)
}

#[tokio::test]
async fn the_quickstart_trains_to_complete_in_a_restricted_namespace() {
    let Some(test) = test_namespace("quickstart").await else { return };
    let _operator = test.operator().await;
    test.post("quickstart", short()).await;
    let status = test.when_true("quickstart", ConditionType::Complete).await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0));
}

/// A file of a ConfigMap is read by the trainer, as an account that the job names, in a pod with its labels.
#[tokio::test]
async fn pod_settings_of_a_job_reach_the_node() {
    let Some(test) = test_namespace("pods").await else { return };
    let _operator = test.operator().await;
    let lists = json!({"metadata": {"name": "lists"}, "data": {"broken.jsonl": "{\"prompt\": 1"}});
    let maps: Api<ConfigMap> = Api::namespaced(test.client.clone(), &test.namespace);
    maps.create(&PostParams::default(), &serde_json::from_value(lists).unwrap()).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(test.client.clone(), &test.namespace);
    let reader = serde_json::from_value(json!({"metadata": {"name": "reader"}})).unwrap();
    accounts.create(&PostParams::default(), &reader).await.unwrap();
    let pod = json!({
        "labels": {"team": "a"}, "annotations": {"example.com/network": "fast"}, "serviceAccountName": "reader",
        "imagePullPolicy": "Never", "volumes": [{"mountPath": "/lists", "configMap": "lists"}],
    });
    let spec = json!({"data": {"task": null, "train": ["/lists/broken.jsonl"]}, "workers": {"pod": pod}});
    test.post("pods", spec).await;
    let made = test.when_pods("pods", |pods| !pods.is_empty()).await.remove(0);
    assert_eq!((&*made.labels()["team"], &*made.annotations()["example.com/network"]), ("a", "fast"));
    assert_eq!(made.spec.unwrap().service_account_name.as_deref(), Some("reader"));
    let failure = test.when_true("pods", ConditionType::Failed).await.last_failure.unwrap();
    assert_eq!(failure.exit_code, Some(78));
    assert!(failure.message.contains("/lists/broken.jsonl"), "{}", failure.message);
    assert!(failure.message.contains("line 1"), "it was read: {}", failure.message);
}

/// The namespace's defaults add a sidecar and a capability, the job its node's network: the trainer's own
/// process reports them. The sidecar ends first, because a pod ends with its last container.
#[tokio::test]
async fn an_allowed_template_and_privileges_reach_the_container() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "template").await;
    test.cluster.load_image(&rlt_tests::test_image("rlt-trainer")).unwrap();
    let privileges = Privileges {
        namespaces: vec![test.namespace.clone()],
        allow: vec![Privilege::HostNetwork],
        capabilities: vec!["IPC_LOCK".into()],
        ..Privileges::default()
    };
    let _operator = test.operator_in_roles_with(PodSettings { privileges, ..PodSettings::default() }).await;
    let sidecar = json!({
        "name": "before", "image": "rlt.local/rlt-trainer:test", "imagePullPolicy": "Never",
        "command": ["rlt-trainer", "--version"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    });
    let template = json!({"spec": {
        "initContainers": [sidecar], "volumes": [{"name": "shared", "emptyDir": {}}],
        "containers": [{"name": "trainer", "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
    }});
    let defaults = json!({"workers": {"pod": {"capabilities": ["IPC_LOCK"]}, "podTemplate": template}});
    test.create(&[json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rltraining-defaults"},
        "data": {"defaults.yaml": defaults.to_string()},
    })]);
    let missing = json!({"task": null, "train": ["/shared/none.jsonl"]});
    test.post("template", json!({"data": missing, "workers": {"pod": {"hostNetwork": true}}})).await;
    let failure = test.when_true("template", ConditionType::Failed).await.last_failure.unwrap();
    assert!(failure.message.contains("/shared/none.jsonl"), "{}", failure.message);
    let pod = test.when_pods("template", |pods| !pods.is_empty()).await.remove(0);
    let status = pod.status.unwrap();
    assert_eq!(status.host_ip, status.pod_ip, "the network of the node");
    let before = status.init_container_statuses.unwrap().remove(0).state.unwrap().terminated.unwrap();
    assert_eq!(before.exit_code, 0);
}

/// Two minutes of the faults of `make bench-chaos`. The test has a cluster of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_under_random_faults_trains_what_an_undisturbed_run_does() {
    chaos::run(chaos::plan::ROUND, CHAOS_SEED).await;
}

#[tokio::test]
async fn the_trainers_last_error_is_in_the_status() {
    let Some(test) = test_namespace("words").await else { return };
    let _operator = test.operator().await;
    let missing = json!({"data": {"task": null, "train": ["/storage/none.jsonl"]}});
    test.post("words", missing).await;
    let failure = test.when_true("words", ConditionType::Failed).await.last_failure.unwrap();
    assert_eq!((failure.cause, failure.exit_code), (FailureCause::BadConfig, Some(78)));
    assert!(failure.message.contains("/storage/none.jsonl"), "{}", failure.message);
}
