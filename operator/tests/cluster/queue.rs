//! Jobs in a queue: with a real Kueue, or with its CRDs alone, where the test plays the queue.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_api::status::{ConditionStatus, ConditionType};
use rlt_cluster::{Cluster, FakeNodes, Fault, Faults, Options, Shared};
use serde_json::{Value, json};

use crate::TIMEOUT;
use crate::crash_point::{CrashPoint, client};
use crate::test_namespace::{Operator, TestNamespace, is_true, pause, reason, until};

/// A fake node without limits, and a Kueue.
static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_kueue().with_fake_nodes(FakeNodes::new(1)));

/// Cluster that has no Kueue at first.
static LATER: Shared = Shared::new(|| Options::control_plane().without_scheduler());

pub(crate) fn kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A queue `team` of four cores, in which the more urgent take the place of the less urgent.
fn queues() -> Vec<Value> {
    let quota = json!([{"name": "cpu", "nominalQuota": "4"}]);
    let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "linux", "resources": quota}]}]);
    vec![
        kueue("ResourceFlavor", "linux", json!({"nodeLabels": {"kubernetes.io/os": "linux"}})),
        kueue(
            "ClusterQueue",
            "all",
            json!({
                "namespaceSelector": {}, "resourceGroups": groups,
                "preemption": {"withinClusterQueue": "LowerPriority"},
            }),
        ),
        kueue("LocalQueue", "team", json!({"clusterQueue": "all"})),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
            "metadata": {"name": "urgent"}, "value": 100,
        }),
    ]
}

impl TestNamespace {
    pub(crate) fn workloads(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload");
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&kind))
    }

    /// The Workload of a job, once it is as wished.
    pub(crate) async fn workload(&self, job: &str, wish: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        let begin = std::time::Instant::now();
        loop {
            let all = self.workloads().list(&ListParams::default()).await.unwrap();
            let is_of =
                |workload: &&DynamicObject| workload.owner_references().iter().any(|owner| owner.name == job);
            if let Some(found) = all.iter().find(is_of).filter(|found| wish(found)) {
                return found.clone();
            }
            assert!(begin.elapsed() < TIMEOUT, "{:#?}", all.items);
            pause(begin).await;
        }
    }

    /// Posts a job of so many workers of two cores, for the queue `team`.
    async fn post_queued(&self, name: &str, count: u32, labels: &[(&str, &str)]) {
        let workers = json!({"workers": {"count": count, "device": "Cpu", "resources": {"cpu": "2"}}});
        let mut job = self.manifest(name, &workers);
        job.labels_mut().insert("kueue.x-k8s.io/queue-name".into(), "team".into());
        job.labels_mut().extend(labels.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        self.jobs().create(&PostParams::default(), &job).await.unwrap();
    }

    /// Plays the queue.
    async fn admit(&self, job: &str) {
        self.set_workload_status(job, json!({"conditions": conditions(&["QuotaReserved", "Admitted"])}))
            .await;
    }

    async fn set_workload_status(&self, job: &str, status: Value) {
        let workload = self.workload(job, |_| true).await;
        let patch = Patch::Merge(json!({"status": status}));
        self.workloads().patch_status(&workload.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Annotates all workers of a job for their fake node.
    async fn annotate_all(&self, job: &str, name: &str, value: &str) {
        let key = format!("fake.rltraining.dev/{name}");
        for pod in self.when_pods(job, |_| true).await {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {&key: value}}}));
            self.pods().patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
        }
    }
}

/// Conditions that hold.
fn conditions(types: &[&str]) -> Value {
    let condition = |type_: &&str| {
        json!({
            "type": type_, "status": "True", "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    types.iter().map(condition).collect()
}

pub(crate) fn holds(workload: &DynamicObject, type_: &str) -> bool {
    let conditions = workload.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == type_ && one["status"] == "True")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lets_jobs_in_takes_their_place_for_more_urgent_ones_and_lets_them_in_again() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "queue").await;
    test.create(&queues());
    let operator = test.operator().await;
    // It does not fit, and so has not one pod.
    test.post_queued("large", 3, &[]).await;
    let words = |status: &rlt_api::status::RLTrainingJobStatus| {
        let admitted = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Admitted);
        admitted.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    let status = test.when("large", |status| words(status).contains("quota")).await;
    assert_eq!(reason(&status, ConditionType::Suspended), Some((ConditionStatus::True, "Queued".into())));
    // It fits, and is placed on the nodes of its flavor.
    test.post_queued("patient", 2, &[]).await;
    test.when_true("patient", ConditionType::PodsReady).await;
    let on_linux =
        |pod: &Pod| pod.spec.as_ref().unwrap().node_selector.as_ref().unwrap()["kubernetes.io/os"] == "linux";
    assert!(test.when_pods("patient", |_| true).await.iter().all(on_linux));
    test.workload("patient", |workload| holds(workload, "PodsReady")).await;
    // A more urgent one takes its place, once its workers had their time for a checkpoint and are gone.
    test.annotate_all("patient", "stop-after", "1h").await;
    test.post_queued("urgent", 2, &[("kueue.x-k8s.io/priority-class", "urgent")]).await;
    let is_leaving = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let leaving = test.when_pods("patient", |pods| pods.len() == 2 && pods.iter().all(is_leaving)).await;
    let has_its_time = |pod: &Pod| {
        pod.metadata.deletion_grace_period_seconds
            == pod.spec.as_ref().unwrap().termination_grace_period_seconds
    };
    assert!(leaving.iter().all(has_its_time));
    operator.reconciles_all(&test).await;
    assert!(test.when_pods("urgent", |_| true).await.is_empty(), "a place is given twice");
    for pod in leaving {
        test.forget(&pod).await;
    }
    let status = test.when_true("urgent", ConditionType::PodsReady).await;
    assert_eq!(status.queue.as_deref(), Some("team"));
    let status = test.when_true("patient", ConditionType::Suspended).await;
    assert_eq!(reason(&status, ConditionType::Admitted), Some((ConditionStatus::False, "Queued".into())));
    assert!(status.failures_by_cause.is_empty(), "to be sent away is no failure");
    test.workload("patient", |workload| holds(workload, "Requeued") || holds(workload, "Evicted")).await;
    test.when_pods("patient", <[_]>::is_empty).await;
    // It ends and reports that, and the waiting job continues.
    test.annotate_all("urgent", "exit-code", "0").await;
    test.when_true("urgent", ConditionType::Complete).await;
    test.workload("urgent", |workload| holds(workload, "Finished")).await;
    let goes_on = |status: &rlt_api::status::RLTrainingJobStatus| {
        is_true(status, ConditionType::PodsReady) && status.attempt == Some(2)
    };
    let status = test.when("patient", goes_on).await;
    assert!(status.failures_by_cause.is_empty());
    test.when_pods("large", <[_]>::is_empty).await;
}

/// Kueue's Workload as far as the API server has to know it.
fn kind_alone() -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let condition = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true, "required": ["type"],
        "properties": {"type": {"type": "string"}},
    });
    // Each condition has a writer of its own, as in Kueue.
    let conditions = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": condition,
    });
    let mut status = anything.clone();
    status["properties"] = json!({"conditions": conditions});
    let properties = json!({"spec": anything, "status": status});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue"},
        },
        "spec": {
            "group": "kueue.x-k8s.io", "scope": "Namespaced",
            "names": {"kind": "Workload", "plural": "workloads", "singular": "workload", "listKind": "WorkloadList"},
            "versions": [{
                "name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            }],
        },
    })
}

/// The cluster of the second part has Kueue's kind from the first one, which needs a cluster without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_installed_kueue_is_discovered_and_a_failed_discovery_stops_no_worker() {
    let Some(cluster) = LATER.get() else { return };
    a_later_installed_kueue_is_discovered_and_jobs_without_a_queue_do_not_wait(cluster).await;
    neither_a_failed_discovery_nor_a_workload_that_cannot_be_read_stops_workers(cluster).await;
}

async fn a_later_installed_kueue_is_discovered_and_jobs_without_a_queue_do_not_wait(
    cluster: &'static Cluster,
) {
    let test = TestNamespace::on(cluster, "later").await;
    let _operator = test.operator().await;
    test.post_queued("waits", 1, &[]).await;
    let admitted = |status: &rlt_api::status::RLTrainingJobStatus| reason(status, ConditionType::Admitted);
    let missing = Some((ConditionStatus::False, "QueueMissing".to_owned()));
    test.when("waits", |status| admitted(status) == missing).await;
    test.post("free", json!({})).await;
    test.worker("free", 1).await;
    test.create(&[kind_alone()]);
    let wait = ["wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=120s"];
    assert!(cluster.kubectl().args(wait).output().unwrap().status.success());
    // Any change brings the job to mind before its time.
    test.patch_job("waits", json!({"runPolicy": {"terminationGracePeriodSeconds": 30}})).await;
    test.admit("waits").await;
    test.worker("waits", 1).await;
    let admitted_now = Some((ConditionStatus::True, "Admitted".to_owned()));
    test.when("waits", |status| admitted(status) == admitted_now).await;
    // Deleting the Workload releases the quota.
    let name = test.workload("waits", |_| true).await.name_any();
    test.workloads().delete(&name, &Default::default()).await.unwrap();
    test.when_pods("waits", <[_]>::is_empty).await;
    test.admit("waits").await;
    test.worker("waits", 2).await;
}

async fn neither_a_failed_discovery_nor_a_workload_that_cannot_be_read_stops_workers(
    cluster: &'static Cluster,
) {
    let test = TestNamespace::on(cluster, "unknown").await;
    let has_kueue = async || {
        let groups = test.client.list_api_groups().await.unwrap().groups;
        groups.iter().any(|group| group.name == "kueue.x-k8s.io")
    };
    let is_served = async || has_kueue().await && test.workloads().list(&ListParams::default()).await.is_ok();
    until("Workloads are served", is_served).await;
    let first = test.operator_in_roles().await;
    test.post_queued("runs", 1, &[]).await;
    test.admit("runs").await;
    let pod = test.worker("runs", 1).await;
    test.run(&pod).await;
    test.when_true("runs", ConditionType::PodsReady).await;
    first.kill().await;
    let runs_on = async |why: &str| {
        let status = test.when_reconciled("runs").await;
        let pods = test.when_pods("runs", |_| true).await;
        let is_it = |now: &Pod| now.uid() == pod.uid() && now.metadata.deletion_timestamp.is_none();
        assert!(pods.len() == 1 && is_it(&pods[0]), "{why}: {status:#?}");
        assert!(is_true(&status, ConditionType::PodsReady) && status.attempt == Some(1), "{why}");
    };
    let faults = Faults::default();
    faults.inject("GET", "/apis", 1, Fault::Refuse(503));
    let _second = Operator::start(client(&test, &faults, &CrashPoint::never()).await, &test.namespace);
    until("discovery fails", async || faults.num_left() == 0).await;
    runs_on("an operator that does not know yet whether there are queues").await;
    test.set_workload_status("runs", json!({"admission": "of a version to come"})).await;
    // The operator has received a later change of another Workload.
    test.post_queued("later", 1, &[]).await;
    test.admit("later").await;
    test.worker("later", 1).await;
    runs_on("a Workload whose status cannot be read").await;
    // Once it can be parsed again, its content counts.
    let evicted = json!({"admission": null, "conditions": conditions(&["QuotaReserved", "Evicted"])});
    test.set_workload_status("runs", evicted).await;
    test.when_pods("runs", <[_]>::is_empty).await;
}
