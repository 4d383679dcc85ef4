//! A job on a real node, with the real trainer in its pods.

#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

#[path = "cluster/stage.rs"]
#[expect(dead_code, reason = "the kubelet's part is played by the kubelet here")]
mod stage;

#[path = "real_node/device.rs"]
mod device;
#[path = "real_node/folder.rs"]
mod folder;
#[path = "real_node/gang.rs"]
mod gang;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_cluster::{Options, Shared};
use serde_json::{Value, json};
use stage::Stage;

static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap"));

/// The quickstart, shortened to some steps.
fn short() -> Value {
    json!({
        "algorithm": {"coldStart": {"steps": 10}},
        "training": {"steps": 5, "evaluateEvery": 5, "schedule": {"warmupSteps": 1}},
    })
}

async fn stage(purpose: &str) -> Option<Stage> {
    let stage = Stage::on(CLUSTER.get()?, purpose).await;
    let label = ["label", "namespace", &stage.namespace, "pod-security.kubernetes.io/enforce=restricted"];
    assert!(stage.cluster.kubectl().args(label).output().unwrap().status.success());
    stage.cluster.load_image(&rlt_tests::test_image("rlt-trainer")).unwrap();
    Some(stage)
}

#[tokio::test]
async fn the_quickstart_trains_to_complete_in_a_restricted_namespace() {
    let Some(stage) = stage("quickstart").await else { return };
    let _operator = stage.operator().await;
    stage.post("quickstart", short()).await;
    let status = stage.when_true("quickstart", ConditionType::Complete).await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0));
}

/// A file of a ConfigMap is read by the trainer, as an account that the job names, in a pod with its labels.
#[tokio::test]
async fn what_a_job_says_of_its_pods_is_there_on_the_node() {
    let Some(stage) = stage("pods").await else { return };
    let _operator = stage.operator().await;
    let lists = json!({"metadata": {"name": "lists"}, "data": {"broken.jsonl": "{\"prompt\": 1"}});
    let maps: Api<ConfigMap> = Api::namespaced(stage.client.clone(), &stage.namespace);
    maps.create(&PostParams::default(), &serde_json::from_value(lists).unwrap()).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let reader = serde_json::from_value(json!({"metadata": {"name": "reader"}})).unwrap();
    accounts.create(&PostParams::default(), &reader).await.unwrap();
    let pod = json!({
        "labels": {"team": "a"}, "annotations": {"example.com/network": "fast"}, "serviceAccountName": "reader",
        "imagePullPolicy": "Never", "volumes": [{"mountPath": "/lists", "configMap": "lists"}],
    });
    let spec = json!({"data": {"task": null, "train": ["/lists/broken.jsonl"]}, "workers": {"pod": pod}});
    stage.post("pods", spec).await;
    let made = stage.when_pods("pods", |pods| !pods.is_empty()).await.remove(0);
    assert_eq!((&*made.labels()["team"], &*made.annotations()["example.com/network"]), ("a", "fast"));
    assert_eq!(made.spec.unwrap().service_account_name.as_deref(), Some("reader"));
    let failure = stage.when_true("pods", ConditionType::Failed).await.last_failure.unwrap();
    assert_eq!(failure.exit_code, Some(78));
    assert!(failure.message.contains("/lists/broken.jsonl"), "{}", failure.message);
    assert!(failure.message.contains("line 1"), "it was read: {}", failure.message);
}

#[tokio::test]
async fn what_the_trainer_said_last_is_in_the_status() {
    let Some(stage) = stage("words").await else { return };
    let _operator = stage.operator().await;
    let missing = json!({"data": {"task": null, "train": ["/storage/none.jsonl"]}});
    stage.post("words", missing).await;
    let failure = stage.when_true("words", ConditionType::Failed).await.last_failure.unwrap();
    assert_eq!((failure.cause, failure.exit_code), (FailureCause::BadConfig, Some(78)));
    assert!(failure.message.contains("/storage/none.jsonl"), "{}", failure.message);
}
