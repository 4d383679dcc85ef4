//! Unusual jobs and circumstances: rival operators, skewed clocks, long names, large sizes, a missing CRD.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use rlt_api::status::ConditionType;
use rlt_cluster::{Call, Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};

use super::{Life, life};
use crate::crash_point::{CrashPoint, client};
use crate::history::History;
use crate::kubelet::Kubelet;
use crate::test_namespace::{Operator, TestNamespace, ended, is_true, until};

#[tokio::test]
async fn two_operators_at_once_live_one_life() {
    let Some(test) = crate::set("two-at-once").await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let _operators = (test.operator().await, test.operator().await);
    life(&test, &history, "shared").await;
    let status = test.status("shared").await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(3), 1));
    history.check(&test, true).await;
}

#[tokio::test]
async fn an_operator_whose_clock_ran_ahead_leaves_nothing_to_wait_for() {
    let Some(test) = crate::set("clock").await else { return };
    let _kubelet = Kubelet::start(&test, |_, attempt| (attempt > 1).then_some(0));
    let first = test.operator().await;
    test.post("ahead", json!({})).await;
    test.when_true("ahead", ConditionType::PodsReady).await;
    first.kill().await;
    let in_an_hour = Some((Timestamp::now() + SignedDuration::from_hours(1)).to_string());
    let mut status = test.status("ahead").await;
    status.active_since.clone_from(&in_an_hour);
    status.attempt_start_time.clone_from(&in_an_hour);
    status.attempt_running_time = in_an_hour;
    let written = json!({"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND,
        "metadata": {"name": "ahead"}, "status": status});
    let params = PatchParams::apply(labels::STATUS_MANAGER).force();
    test.jobs().patch_status("ahead", &params, &Patch::Apply(written)).await.unwrap();
    let pod = test.worker("ahead", 1).await;
    test.pods().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    let _second = test.operator().await;
    let status = test.when("ahead", |status| is_true(status, ConditionType::Complete)).await;
    assert_eq!(status.attempt, Some(2));
}

#[tokio::test]
async fn hostile_words_reach_the_trainer_as_they_are() {
    let Some(test) = crate::set("hostile").await else { return };
    let _operator = test.operator().await;
    let words = [
        "$(RANK)",
        "line\nbreak",
        "- a: b",
        "yes",
        "0x1F",
        "~",
        "&a *a",
        "\u{202e}\u{feff}",
        "'\"`;#",
        "\u{1}",
    ];
    let env: Vec<_> = words
        .iter()
        .enumerate()
        .map(|(idx, word)| json!({"name": format!("W{idx}"), "value": word}))
        .collect();
    let name = "a--trainer-0-manifest";
    let posted = test.post(name, json!({"workers": {"env": env}})).await;
    let pod = test.worker(name, 1).await;
    let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
    let value = |name: String| variables.iter().find(|one| one.name == name).unwrap().value.clone().unwrap();
    for (idx, word) in words.iter().enumerate() {
        assert_eq!(value(format!("W{idx}")).replace("$$", "$"), *word);
    }
    let maps: Api<ConfigMap> = Api::namespaced(test.client.clone(), &test.namespace);
    let name = format!("{name}-manifest");
    // It is made beside the pod, which waits for it.
    until("the manifest is there", async || maps.get_opt(&name).await.unwrap().is_some()).await;
    let manifest = maps.get(&name).await.unwrap().data.unwrap()["manifest.yaml"].clone();
    let read = serde_json::to_value(&rlt_api::validate(&manifest).unwrap().spec().workers.env).unwrap();
    assert_eq!(read, posted.data["spec"]["workers"]["env"]);
}

#[tokio::test]
async fn annotations_of_the_largest_size_are_accepted() {
    let Some(test) = crate::set("large").await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let _operator = test.operator().await;
    let with = |kib: usize| {
        let mut manifest = test.manifest("large", &json!({"workers": {"count": 2, "device": "Cpu"}}));
        manifest.annotations_mut().insert("example.com/notes".into(), "x".repeat(kib * 1024));
        manifest
    };
    let refused = test.jobs().create(&PostParams::default(), &with(5 * 1024)).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(_)), "{refused}");
    test.jobs().create(&PostParams::default(), &with(255)).await.unwrap();
    let status = history.when("large", |status| status.attempt == Some(2)).await;
    assert_eq!(status.failures_by_cause.len(), 1);
    history.check(&test, false).await;
}

#[tokio::test]
async fn a_job_that_is_deleted_and_made_again_within_a_second_begins_anew_each_time() {
    let Some(test) = crate::set("reborn").await else { return };
    let _kubelet = Kubelet::start(&test, |_, _| None);
    let history = History::of(&test).await;
    let _operator = test.operator().await;
    for pause in [0, 20, 60, 150, 300] {
        test.post("reborn", json!({})).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        test.jobs().delete("reborn", &DeleteParams::background()).await.unwrap();
    }
    let last = test.post("reborn", json!({})).await;
    let status = test.when_true("reborn", ConditionType::PodsReady).await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0));
    let pods = test.when_pods("reborn", |pods| pods.len() == 1).await;
    assert_eq!(pods[0].owner_references()[0].uid, last.uid().unwrap());
    history.check(&test, false).await;
}

#[tokio::test]
async fn a_job_deleted_while_it_runs_leaves_no_objects() {
    let Some(test) = crate::set("cut-short").await else { return };
    let _kubelet = Life::kubelet(&test);
    let crash_point = CrashPoint::never();
    let operator = Operator::start(client(&test, &Default::default(), &crash_point).await, &test.namespace);
    test.post("short", json!({"workers": {"count": 2, "device": "Cpu"}})).await;
    test.when("short", |status| status.attempt == Some(2)).await;
    test.jobs().delete("short", &DeleteParams::background()).await.unwrap();
    test.when_gone("short").await;
    test.when_pods("short", <[_]>::is_empty).await;
    // Calls in flight end. Reconciles of another, suspended job cost no call.
    test.post("held", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("held", ConditionType::Suspended).await;
    operator.settles(&test, || crash_point.num_calls()).await;
    let calls = crash_point.num_calls();
    for _ in 0..3 {
        operator.reconciles_all(&test).await;
    }
    assert_eq!(crash_point.num_calls(), calls, "no calls for a deleted job");
}

impl TestNamespace {
    /// Brings the definition of our kind, or changes it.
    async fn define(&self, definition: &Value) {
        let definition: CustomResourceDefinition = serde_json::from_value(definition.clone()).unwrap();
        let params = PatchParams::apply("tests").force();
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = definition.name_any();
        definitions.patch(&name, &params, &Patch::Apply(definition)).await.unwrap();
        until("the kind is served", async || self.jobs().list(&Default::default()).await.is_ok()).await;
    }
}

#[tokio::test]
async fn an_operator_waits_for_a_missing_or_outdated_crd() {
    static BARE: Shared = Shared::new(|| Options::control_plane().without_scheduler().with_audit_log());
    let Some(cluster) = BARE.get() else { return };
    let manifest = include_str!("../../../../crds/manifests/rltrainingjobs.yaml");
    let mut definition: Value = serde_saphyr::from_str(manifest).unwrap();
    let test = TestNamespace::without_definition(cluster, "early").await;
    // Discovery asks at a path that is no resource, as nothing else does before the definition is there.
    let asks = |call: &Call| call.user == "admin" && call.verb == "get" && call.resource.is_empty();
    let num_asked = || test.cluster.calls().unwrap().into_iter().filter(asks).count();
    let num_before = num_asked();
    let operator = test.operator().await;
    until("the operator asks again for the APIs", async || num_asked() >= num_before + 2).await;
    let current = definition.clone();
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    let fields = definition.pointer_mut(status).and_then(Value::as_object_mut).unwrap();
    for young in ["retriesUsed", "retriesSinceStep", "failuresByNode", "shortAttempts"] {
        fields.remove(young).unwrap();
    }
    test.define(&definition).await;
    test.post("early", json!({})).await;
    let first = test.worker("early", 1).await;
    test.run(&first).await;
    test.when_true("early", ConditionType::PodsReady).await;
    test.end(&first, 75, "").await;
    // The older CRD lacks the fields that the next attempt has to write first.
    until("two writes fail", async || operator.num_reconciles("failed") >= 2).await;
    assert_eq!(test.status("early").await.attempt, Some(1));
    test.define(&current).await;
    let second = test.worker("early", 2).await;
    test.run(&second).await;
    test.end(&second, 0, "").await;
    test.when_true("early", ConditionType::Complete).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_pod_of_another_namespace_that_names_a_job_as_its_owner_is_none_of_its_workers() {
    let Some(test) = crate::set("owner").await else { return };
    let elsewhere = test.cluster.namespace("elsewhere").await.unwrap();
    let namespaces = vec![test.namespace.clone(), elsewhere.clone()];
    let _operator = Operator::start_in(test.client.clone(), namespaces);
    let other =
        TestNamespace { cluster: test.cluster, client: test.client.clone(), namespace: elsewhere.clone() };
    test.post("guarded", json!({})).await;
    let pod = test.worker("guarded", 1).await;
    test.run(&pod).await;
    test.when_true("guarded", ConditionType::PodsReady).await;
    // The garbage collector misses the owner in that namespace; a finalizer keeps the pod until it has ended.
    let copy = json!({
        "metadata": {
            "name": pod.name_any(), "labels": pod.labels(), "ownerReferences": pod.owner_references(),
            "finalizers": ["rltraining.dev/test"],
        },
        "spec": {"containers": [{"name": "trainer", "image": "rlt.local/none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), &elsewhere);
    pods.create(&PostParams::default(), &serde_json::from_value(copy).unwrap()).await.unwrap();
    let failed = Patch::Merge(json!({"status": ended(75, "not yours")}));
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &failed).await.unwrap();
    // The operator has seen the end of a later pod of that namespace, so it has seen the copy's too.
    other.post("later", json!({})).await;
    other.end(&other.worker("later", 1).await, 75, "").await;
    other.worker("later", 2).await;
    let status = test.when_reconciled("guarded").await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0), "{:?}", status.last_failure);
    assert!(is_true(&status, ConditionType::PodsReady));
}
