//! The life of a job, from its creation to its end.

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType};
use rlt_cluster::Call;
use rlt_objects::labels;
use serde_json::json;

use crate::test_namespace::{ADDRESS, TestNamespace, is_true, reason, running, unseen, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_becomes_a_pod_runs_and_completes_and_its_status_says_so() {
    let Some(test) = crate::set("complete").await else { return };
    let operator = test.operator().await;
    test.post("quick", json!({})).await;
    let pod = test.worker("quick", 1).await;
    let status = test.when_true("quick", ConditionType::Reconciling).await;
    assert_eq!(status.ready.as_deref(), Some("0/1"));
    assert_eq!(status.resolved.unwrap().samples_per_step, 512);
    assert_eq!(status.conditions.len(), ConditionType::ALL.len());
    let manifests: Api<ConfigMap> = Api::namespaced(test.client.clone(), &test.namespace);
    let manifest = manifests.get("quick-manifest").await.unwrap().data.unwrap()["manifest.yaml"].clone();
    assert_eq!(rlt_api::validate(&manifest).unwrap().name(), "quick");
    test.run(&pod).await;
    let status = test.when_true("quick", ConditionType::PodsReady).await;
    assert!(!is_true(&status, ConditionType::Reconciling));
    test.end(&pod, 0, "").await;
    let wait = ["wait", "--for=condition=Complete", "rltj/quick", "--timeout=120s", "-n", &test.namespace];
    let waited = test.cluster.kubectl().args(wait).output().unwrap();
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    let status = test.status("quick").await;
    assert!(is_true(&status, ConditionType::Succeeded));
    assert!(status.completion_time.is_some());
    let metadata = serde_json::to_value(test.jobs().get("quick").await.unwrap().metadata).unwrap();
    let written = metadata["managedFields"].as_array().unwrap();
    let ours = written.iter().find(|entry| entry["manager"] == labels::STATUS_MANAGER).unwrap();
    assert_eq!(
        ours["fieldsV1"],
        json!({"f:status": {}}),
        "managed fields cover the status as a whole, which is small"
    );
    operator.stop().await;
}

#[tokio::test]
async fn the_printed_columns_say_what_a_job_is_doing() {
    let Some(test) = crate::set("columns").await else { return };
    let _operator = test.operator().await;
    test.post("row", json!({})).await;
    let row = || {
        let get = ["get", "rltj", "row", "-n", &test.namespace, "--no-headers"];
        let printed = test.cluster.kubectl().args(get).output().unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    test.when_true("row", ConditionType::Reconciling).await;
    assert_eq!(row()[..3], ["row", "Reconciling", "0/1"]);
    test.run(&test.worker("row", 1).await).await;
    test.when_true("row", ConditionType::PodsReady).await;
    assert_eq!(row()[..3], ["row", "PodsReady", "1/1"]);
    test.end(&test.worker("row", 1).await, 78, "no GPU").await;
    test.when_true("row", ConditionType::Failed).await;
    assert_eq!(row()[1], "Failed");
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_resumes_with_a_new_attempt() {
    let Some(test) = crate::set("suspension").await else { return };
    let operator = test.operator().await;
    test.post("pause", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("pause", ConditionType::Suspended).await;
    operator.reconciles_all(&test).await;
    assert!(test.when_pods("pause", |_| true).await.is_empty());
    test.patch_job("pause", json!({"runPolicy": {"suspend": false}})).await;
    test.run(&test.worker("pause", 1).await).await;
    test.when_true("pause", ConditionType::PodsReady).await;
    test.patch_job("pause", json!({"runPolicy": {"suspend": true}})).await;
    let status = test.when_true("pause", ConditionType::Suspended).await;
    assert_eq!((status.active_since, status.attempt), (None, Some(1)));
    test.when_pods("pause", <[_]>::is_empty).await;
    test.patch_job("pause", json!({"runPolicy": {"suspend": false}})).await;
    test.worker("pause", 2).await;
}

#[tokio::test]
async fn a_deleted_worker_starts_a_new_attempt_without_using_a_retry() {
    let Some(test) = crate::set("deletion").await else { return };
    let _operator = test.operator().await;
    test.post("evicted", json!({})).await;
    let first = test.worker("evicted", 1).await;
    test.run(&first).await;
    test.when_true("evicted", ConditionType::PodsReady).await;
    test.pods().delete(&first.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let second = test.worker("evicted", 2).await;
    assert_ne!(first.uid(), second.uid());
    test.run(&second).await;
    let status = test.when("evicted", |status| is_true(status, ConditionType::PodsReady)).await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
}

#[tokio::test]
async fn the_name_of_a_gang_resolves_to_its_first_worker_and_never_to_a_deleted_one() {
    let Some(test) = crate::set("rendezvous").await else { return };
    let _operator = test.operator_in_roles().await;
    test.post("met", json!({"workers": {"count": 2, "device": "Cpu"}})).await;
    let pods = test.when_pods("met", |pods| pods.len() == 2).await;
    for pod in &pods {
        test.run(pod).await;
    }
    test.when_true("met", ConditionType::PodsReady).await;
    let slices: Api<EndpointSlice> = Api::namespaced(test.client.clone(), &test.namespace);
    let found = slices.get("met-trainer").await.unwrap();
    let endpoint = &found.endpoints[0];
    assert_eq!(
        (endpoint.hostname.as_deref(), endpoint.addresses.as_slice()),
        (Some("met-trainer-0"), &[ADDRESS.into()][..])
    );
    assert_eq!(endpoint.target_ref.as_ref().unwrap().uid, pods[0].uid());
    test.pods().delete(&pods[1].name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let is_second = |pod: &k8s_openapi::api::core::v1::Pod| pod.labels()[rlt_objects::labels::ATTEMPT] == "2";
    test.when_pods("met", |pods| pods.iter().filter(|pod| is_second(pod)).count() == 2).await;
    assert_eq!(slices.get("met-trainer").await.unwrap().endpoints, []);
    // The API server refuses another family of the addresses: the slice is made again.
    let mut elsewhere = running();
    elsewhere["podIP"] = json!("fd00::7");
    test.set_status(&test.worker("met", 2).await, elsewhere).await;
    let is_found = async || {
        let found = slices.get_opt("met-trainer").await.unwrap();
        found.is_some_and(|slice| !slice.endpoints.is_empty())
    };
    until("the name resolves again", is_found).await;
    let found = slices.get("met-trainer").await.unwrap();
    assert_ne!(found.endpoints[0].target_ref.as_ref().unwrap().uid, pods[0].uid());
    assert_eq!((&*found.address_type, &*found.endpoints[0].addresses[0]), ("IPv6", "fd00::7"));
}

#[tokio::test]
async fn a_passing_failure_is_tried_again_and_a_lasting_one_ends_the_job_with_advice() {
    let Some(test) = crate::set("failure").await else { return };
    let _operator = test.operator().await;
    test.post("fails", json!({})).await;
    let first = test.worker("fails", 1).await;
    test.run(&first).await;
    test.when_true("fails", ConditionType::PodsReady).await;
    test.end(&first, 75, "failed to read `/storage/model`: stale file handle").await;
    let second = test.worker("fails", 2).await;
    test.run(&second).await;
    test.end(&second, 78, "spec.workers.device: Cuda was asked for, libtorch sees 0").await;
    let status = test.when_true("fails", ConditionType::Failed).await;
    let failure = status.last_failure.clone().unwrap();
    assert_eq!((failure.cause, failure.attempt, failure.exit_code), (FailureCause::BadConfig, 2, Some(78)));
    assert!(failure.message.contains("libtorch sees 0"), "{}", failure.message);
    assert_eq!(reason(&status, ConditionType::Stalled), Some((ConditionStatus::True, "BadConfig".into())));
    // Events follow the status.
    let events: Api<Event> = Api::namespaced(test.client.clone(), &test.namespace);
    for reason in ["WorkersRunning", "RetryableIo", "Restarting", "BadConfig"] {
        let is_published = async || {
            let all = events.list(&ListParams::default()).await.unwrap();
            all.items.iter().any(|event| event.reason.as_deref() == Some(reason))
        };
        until(&format!("{reason} is published"), is_published).await;
    }
}

/// Whether the API server refuses a further pod. It does so for another reason until the quota controller has
/// written what is used.
async fn exceeds_quota(test: &TestNamespace) -> bool {
    let pod =
        json!({"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "probe", "image": "none"}]}});
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    let answer = test.pods().create(&trial, &serde_json::from_value(pod).unwrap()).await;
    answer.is_err_and(|error| error.to_string().contains("exceeded quota: none"))
}

/// Calls so far that create pods of a test, refused ones too.
fn creates_of_pods(test: &TestNamespace) -> Vec<Call> {
    let calls = test.cluster.calls().unwrap().into_iter();
    let is_it =
        |call: &Call| call.namespace == test.namespace && call.resource == "pods" && call.verb == "create";
    calls.filter(is_it).collect()
}

#[tokio::test]
async fn a_pod_that_the_api_server_refuses_is_explained_and_made_once_it_is_allowed() {
    let Some(test) = crate::set("quota").await else { return };
    let quota = ["create", "quota", "none", "--hard=pods=0", "-n", &test.namespace];
    assert!(test.cluster.kubectl().args(quota).output().unwrap().status.success());
    until("the quota counts", async || exceeds_quota(&test).await).await;
    let num_probes = creates_of_pods(&test).len();
    let _operator = test.operator().await;
    test.post("refused", json!({"workers": {"count": 12, "device": "Cpu"}})).await;
    let status = test
        .when("refused", |status| {
            reason(status, ConditionType::Stalled).is_some_and(|(_, reason)| reason == "WorkersRefused")
        })
        .await;
    let stalled = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Stalled);
    assert!(stalled.unwrap().message.contains("exceeded quota: none"), "{stalled:?}");
    let refused = creates_of_pods(&test).split_off(num_probes);
    let few = 1..=8;
    assert!(few.contains(&refused.len()), "a few calls show that none of twelve is allowed: {refused:#?}");
    let remove = ["delete", "quota", "none", "-n", &test.namespace];
    assert!(test.cluster.kubectl().args(remove).output().unwrap().status.success());
    // Any change brings the job to mind before its time.
    test.patch_job("refused", json!({"runPolicy": {"terminationGracePeriodSeconds": 30}})).await;
    test.worker("refused", 1).await;
    test.when("refused", |status| !is_true(status, ConditionType::Stalled)).await;
}

#[tokio::test]
async fn a_job_of_another_manager_is_left_alone() {
    let Some(test) = crate::set("managed").await else { return };
    let operator = test.operator().await;
    test.post("theirs", json!({"managedBy": "kueue.x-k8s.io/multikueue"})).await;
    // Privileges are checked in the other cluster.
    let pod = json!({"hostNetwork": true});
    test.post("elsewhere", json!({"managedBy": "example.com/other", "workers": {"pod": pod}})).await;
    test.post("ours", json!({"managedBy": "rltraining.dev/operator"})).await;
    test.worker("ours", 1).await;
    operator.reconciles_all(&test).await;
    assert_eq!(test.status("theirs").await, unseen());
    assert_eq!(test.status("elsewhere").await, unseen());
}

#[tokio::test]
async fn an_object_of_another_owner_is_never_adopted() {
    let Some(test) = crate::set("occupied").await else { return };
    let accounts: Api<ServiceAccount> = Api::namespaced(test.client.clone(), &test.namespace);
    let theirs = serde_json::from_value(json!({"metadata": {"name": "mine-trainer"}})).unwrap();
    accounts.create(&Default::default(), &theirs).await.unwrap();
    let operator = test.operator().await;
    test.post("mine", json!({})).await;
    operator.reconciles_all(&test).await;
    test.when_pods("mine", <[_]>::is_empty).await;
    let found = accounts.get("mine-trainer").await.unwrap();
    assert_eq!((found.metadata.labels, found.metadata.owner_references), (None, None));
    accounts.delete("mine-trainer", &DeleteParams::default()).await.unwrap();
    test.worker("mine", 1).await;
}

#[tokio::test]
async fn two_jobs_at_once_do_not_meet() {
    let Some(test) = crate::set("two").await else { return };
    let _operator = test.operator().await;
    test.post("a", json!({})).await;
    test.post("a-trainer", json!({})).await;
    let (one, other) = (test.worker("a", 1).await, test.worker("a-trainer", 1).await);
    assert_eq!((one.name_any(), other.name_any()), ("a-trainer-0".into(), "a-trainer-trainer-0".into()));
    test.run(&one).await;
    test.end(&one, 78, "").await;
    test.when_true("a", ConditionType::Failed).await;
    test.run(&other).await;
    test.when_true("a-trainer", ConditionType::PodsReady).await;
}
