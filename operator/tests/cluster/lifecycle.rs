//! From the posted job to its end, with everything that may happen in between.

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType};
use rlt_operator::labels;
use serde_json::json;

use crate::stage::{ADDRESS, is_true, reason, unseen};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_becomes_a_pod_runs_and_completes_and_its_status_says_so() {
    let Some(stage) = crate::set("complete").await else { return };
    let operator = stage.operator().await;
    stage.post("quick", json!({})).await;
    let pod = stage.worker("quick", 1).await;
    let status = stage.when_true("quick", ConditionType::Reconciling).await;
    assert_eq!(status.ready.as_deref(), Some("0/1"));
    assert_eq!(status.resolved.unwrap().samples_per_step, 512);
    assert_eq!(status.conditions.len(), ConditionType::ALL.len());
    let manifests: Api<ConfigMap> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let manifest = manifests.get("quick-manifest").await.unwrap().data.unwrap()["manifest.yaml"].clone();
    assert_eq!(rlt_api::validate(&manifest).unwrap().name(), "quick");
    stage.run(&pod).await;
    let status = stage.when_true("quick", ConditionType::PodsReady).await;
    assert!(!is_true(&status, ConditionType::Reconciling));
    stage.end(&pod, 0, "").await;
    let wait = ["wait", "--for=condition=Complete", "rltj/quick", "--timeout=20s", "-n", &stage.namespace];
    let waited = stage.cluster.kubectl().args(wait).output().unwrap();
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    let status = stage.status("quick").await;
    assert!(is_true(&status, ConditionType::Succeeded));
    assert!(status.completion_time.is_some());
    let metadata = serde_json::to_value(stage.jobs().get("quick").await.unwrap().metadata).unwrap();
    let written = metadata["managedFields"].as_array().unwrap();
    let ours = written.iter().find(|entry| entry["manager"] == labels::STATUS_MANAGER).unwrap();
    assert_eq!(ours["fieldsV1"], json!({"f:status": {}}), "who wrote it is kept as a whole, which is cheap");
    operator.stop().await;
}

#[tokio::test]
async fn the_printed_columns_say_what_a_job_is_doing() {
    let Some(stage) = crate::set("columns").await else { return };
    let _operator = stage.operator().await;
    stage.post("row", json!({})).await;
    let row = || {
        let get = ["get", "rltj", "row", "-n", &stage.namespace, "--no-headers"];
        let printed = stage.cluster.kubectl().args(get).output().unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    stage.when_true("row", ConditionType::Reconciling).await;
    assert_eq!(row()[..3], ["row", "Reconciling", "0/1"]);
    stage.run(&stage.worker("row", 1).await).await;
    stage.when_true("row", ConditionType::PodsReady).await;
    assert_eq!(row()[..3], ["row", "PodsReady", "1/1"]);
    stage.end(&stage.worker("row", 1).await, 78, "no GPU").await;
    stage.when_true("row", ConditionType::Failed).await;
    assert_eq!(row()[1], "Failed");
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_goes_on_as_a_new_attempt() {
    let Some(stage) = crate::set("suspension").await else { return };
    let _operator = stage.operator().await;
    stage.post("pause", json!({"runPolicy": {"suspend": true}})).await;
    stage.when_true("pause", ConditionType::Suspended).await;
    stage.when_pods("pause", <[_]>::is_empty).await;
    stage.patch_job("pause", json!({"runPolicy": {"suspend": false}})).await;
    stage.run(&stage.worker("pause", 1).await).await;
    stage.when_true("pause", ConditionType::PodsReady).await;
    stage.patch_job("pause", json!({"runPolicy": {"suspend": true}})).await;
    let status = stage.when_true("pause", ConditionType::Suspended).await;
    assert_eq!((status.active_since, status.attempt), (None, Some(1)));
    stage.when_pods("pause", <[_]>::is_empty).await;
    stage.patch_job("pause", json!({"runPolicy": {"suspend": false}})).await;
    stage.worker("pause", 2).await;
}

#[tokio::test]
async fn a_worker_that_is_deleted_comes_back_as_a_new_attempt_that_costs_no_retry() {
    let Some(stage) = crate::set("deletion").await else { return };
    let _operator = stage.operator().await;
    stage.post("evicted", json!({})).await;
    let first = stage.worker("evicted", 1).await;
    stage.run(&first).await;
    stage.when_true("evicted", ConditionType::PodsReady).await;
    stage.pods().delete(&first.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let second = stage.worker("evicted", 2).await;
    assert_ne!(first.uid(), second.uid());
    stage.run(&second).await;
    let status = stage.when("evicted", |status| is_true(status, ConditionType::PodsReady)).await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
}

#[tokio::test]
async fn the_name_of_a_gang_leads_to_its_first_worker_and_never_to_one_that_is_gone() {
    let Some(stage) = crate::set("rendezvous").await else { return };
    let _operator = stage.operator().await;
    stage.post("met", json!({"workers": {"count": 2, "device": "Cpu"}})).await;
    let pods = stage.when_pods("met", |pods| pods.len() == 2).await;
    for pod in &pods {
        stage.run(pod).await;
    }
    stage.when_true("met", ConditionType::PodsReady).await;
    let slices: Api<EndpointSlice> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let found = slices.get("met-trainer").await.unwrap();
    let endpoint = &found.endpoints[0];
    assert_eq!(
        (endpoint.hostname.as_deref(), endpoint.addresses.as_slice()),
        (Some("met-trainer-0"), &[ADDRESS.into()][..])
    );
    assert_eq!(endpoint.target_ref.as_ref().unwrap().uid, pods[0].uid());
    stage.pods().delete(&pods[1].name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let is_second =
        |pod: &k8s_openapi::api::core::v1::Pod| pod.labels()[rlt_operator::labels::ATTEMPT] == "2";
    stage.when_pods("met", |pods| pods.iter().filter(|pod| is_second(pod)).count() == 2).await;
    assert_eq!(slices.get("met-trainer").await.unwrap().endpoints, []);
    stage.run(&stage.worker("met", 2).await).await;
    let mut found = slices.get("met-trainer").await.unwrap();
    for _ in 0..500 {
        if !found.endpoints.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        found = slices.get("met-trainer").await.unwrap();
    }
    assert_ne!(found.endpoints[0].target_ref.as_ref().unwrap().uid, pods[0].uid());
}

#[tokio::test]
async fn a_passing_failure_is_tried_again_and_a_lasting_one_ends_the_job_with_advice() {
    let Some(stage) = crate::set("failure").await else { return };
    let _operator = stage.operator().await;
    stage.post("fails", json!({})).await;
    let first = stage.worker("fails", 1).await;
    stage.run(&first).await;
    stage.end(&first, 75, "failed to read `/storage/model`: stale file handle").await;
    let second = stage.worker("fails", 2).await;
    stage.run(&second).await;
    stage.end(&second, 78, "spec.workers.device: Cuda was asked for, libtorch sees 0").await;
    let status = stage.when_true("fails", ConditionType::Failed).await;
    let failure = status.last_failure.clone().unwrap();
    assert_eq!((failure.cause, failure.attempt, failure.exit_code), (FailureCause::BadConfig, 2, Some(78)));
    assert!(failure.message.contains("libtorch sees 0"), "{}", failure.message);
    assert_eq!(reason(&status, ConditionType::Stalled), Some((ConditionStatus::True, "BadConfig".into())));
    // Events follow the status.
    let events: Api<Event> = Api::namespaced(stage.client.clone(), &stage.namespace);
    for reason in ["WorkersRunning", "RetryableIo", "Restarting", "BadConfig"] {
        let is_told = async || {
            let told = events.list(&ListParams::default()).await.unwrap();
            told.items.iter().any(|event| event.reason.as_deref() == Some(reason))
        };
        for _ in 0..500 {
            if is_told().await {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert!(is_told().await, "{reason} was not told");
    }
}

#[tokio::test]
async fn a_pod_that_the_api_server_refuses_is_explained_and_made_once_it_is_allowed() {
    let Some(stage) = crate::set("quota").await else { return };
    let quota = ["create", "quota", "none", "--hard=pods=0", "-n", &stage.namespace];
    assert!(stage.cluster.kubectl().args(quota).output().unwrap().status.success());
    let _operator = stage.operator().await;
    stage.post("refused", json!({"workers": {"count": 12, "device": "Cpu"}})).await;
    let status = stage
        .when("refused", |status| {
            reason(status, ConditionType::Stalled).is_some_and(|(_, reason)| reason == "WorkersRefused")
        })
        .await;
    let stalled = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Stalled);
    assert!(stalled.unwrap().message.contains("exceeded quota: none"), "{stalled:?}");
    let calls = stage.cluster.calls().unwrap();
    let is_refused = |call: &&rlt_cluster::Call| {
        call.namespace == stage.namespace && call.resource == "pods" && call.verb == "create"
    };
    let refused: Vec<_> = calls.iter().filter(is_refused).collect();
    let few = 1..=8;
    assert!(few.contains(&refused.len()), "a few calls tell that none of twelve is allowed: {refused:#?}");
    let remove = ["delete", "quota", "none", "-n", &stage.namespace];
    assert!(stage.cluster.kubectl().args(remove).output().unwrap().status.success());
    // Any change brings the job to mind before its time.
    stage.patch_job("refused", json!({"runPolicy": {"terminationGracePeriodSeconds": 30}})).await;
    stage.worker("refused", 1).await;
    stage.when("refused", |status| !is_true(status, ConditionType::Stalled)).await;
}

#[tokio::test]
async fn a_job_of_another_manager_is_left_alone() {
    let Some(stage) = crate::set("managed").await else { return };
    let _operator = stage.operator().await;
    stage.post("theirs", json!({"managedBy": "kueue.x-k8s.io/multikueue"})).await;
    // What this cluster would not allow is for the other one to say.
    let pod = json!({"hostNetwork": true});
    stage.post("elsewhere", json!({"managedBy": "example.com/other", "workers": {"pod": pod}})).await;
    stage.post("ours", json!({"managedBy": "rltraining.dev/operator"})).await;
    stage.worker("ours", 1).await;
    assert_eq!(stage.status("theirs").await, unseen());
    assert_eq!(stage.status("elsewhere").await, unseen());
}

#[tokio::test]
async fn an_object_of_somebody_else_is_never_taken_over() {
    let Some(stage) = crate::set("occupied").await else { return };
    let accounts: Api<ServiceAccount> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let theirs = serde_json::from_value(json!({"metadata": {"name": "mine-trainer"}})).unwrap();
    accounts.create(&Default::default(), &theirs).await.unwrap();
    let _operator = stage.operator().await;
    stage.post("mine", json!({})).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    stage.when_pods("mine", <[_]>::is_empty).await;
    let found = accounts.get("mine-trainer").await.unwrap();
    assert_eq!((found.metadata.labels, found.metadata.owner_references), (None, None));
    accounts.delete("mine-trainer", &DeleteParams::default()).await.unwrap();
    stage.worker("mine", 1).await;
}

#[tokio::test]
async fn two_jobs_at_once_do_not_meet() {
    let Some(stage) = crate::set("two").await else { return };
    let _operator = stage.operator().await;
    stage.post("a", json!({})).await;
    stage.post("a-trainer", json!({})).await;
    let (one, other) = (stage.worker("a", 1).await, stage.worker("a-trainer", 1).await);
    assert_eq!((one.name_any(), other.name_any()), ("a-trainer-0".into(), "a-trainer-trainer-0".into()));
    stage.run(&one).await;
    stage.end(&one, 78, "").await;
    stage.when_true("a", ConditionType::Failed).await;
    stage.run(&other).await;
    stage.when_true("a-trainer", ConditionType::PodsReady).await;
}
