//! Jobs in a queue, on a cluster that knows the kind of Kueue alone: the test speaks for the queue.

use std::io::Write as _;
use std::process::Stdio;

use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_api::status::{ConditionStatus, ConditionType};
use rlt_cluster::{Cluster, Options, Shared};
use serde_json::{Value, json};

use crate::stage::{Stage, reason};

/// Without Kueue at first.
static LATER: Shared = Shared::new(|| Options::control_plane().without_scheduler());

fn create(cluster: &Cluster, namespace: &str, objects: &[Value]) {
    let mut kubectl = cluster.kubectl();
    kubectl.args(["create", "-n", namespace, "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = kubectl.spawn().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

impl Stage {
    fn workloads(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload");
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&kind))
    }

    /// The Workload of a job, once it is as wished.
    async fn workload(&self, job: &str, wish: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        let begin = std::time::Instant::now();
        loop {
            let all = self.workloads().list(&ListParams::default()).await.unwrap();
            let is_of = |workload: &&DynamicObject| workload.owner_references()[0].name == job;
            if let Some(found) = all.iter().find(is_of).filter(|found| wish(found)) {
                return found.clone();
            }
            assert!(begin.elapsed().as_secs() < 60, "{:#?}", all.items);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
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
        let workload = self.workload(job, |_| true).await;
        let condition = |type_: &str| {
            json!({
                "type": type_, "status": "True", "reason": "Test", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let status = json!({"status": {"conditions": [condition("QuotaReserved"), condition("Admitted")]}});
        let patch = Patch::Merge(status);
        self.workloads().patch_status(&workload.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Kueue's Workload as far as the API server has to know it.
fn kind_alone() -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let properties = json!({"spec": anything, "status": anything});
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_come_later_are_noticed_and_jobs_without_one_do_not_care() {
    let Some(cluster) = LATER.get() else { return };
    let stage = Stage::on(cluster, "later").await;
    let _operator = stage.operator().await;
    stage.post_queued("waits", 1, &[]).await;
    let admitted = |status: &rlt_api::status::RLTrainingJobStatus| reason(status, ConditionType::Admitted);
    let missing = Some((ConditionStatus::False, "QueueMissing".to_owned()));
    stage.when("waits", |status| admitted(status) == missing).await;
    stage.post("free", json!({})).await;
    stage.worker("free", 1).await;
    create(cluster, &stage.namespace, &[kind_alone()]);
    let wait = ["wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=20s"];
    assert!(cluster.kubectl().args(wait).output().unwrap().status.success());
    // Any change brings the job to mind before its time.
    stage.patch_job("waits", json!({"runPolicy": {"terminationGracePeriodSeconds": 30}})).await;
    stage.admit("waits").await;
    stage.worker("waits", 1).await;
    let admitted_now = Some((ConditionStatus::True, "Admitted".to_owned()));
    stage.when("waits", |status| admitted(status) == admitted_now).await;
    // Whoever takes the Workload away takes the place away.
    let name = stage.workload("waits", |_| true).await.name_any();
    stage.workloads().delete(&name, &Default::default()).await.unwrap();
    stage.when_pods("waits", <[_]>::is_empty).await;
    stage.admit("waits").await;
    stage.worker("waits", 2).await;
}
