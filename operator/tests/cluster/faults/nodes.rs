//! Nodes that are lost, and nodes that only stop answering.

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType};
use rlt_cluster::{Fault, Faults};
use serde_json::{Value, json};

use crate::crash_point::{CrashPoint, client};
use crate::history::History;
use crate::kubelet::Kubelet;
use crate::test_namespace::{Operator, TestNamespace, reason, until};

/// A node without a machine, on which the scheduler puts nothing.
pub(super) struct Node {
    name: String,
}

impl Node {
    pub(super) async fn make(test: &TestNamespace, name: &str) -> Self {
        let name = format!("{}-{name}", test.namespace);
        let taints = json!([{"key": "tested", "effect": "NoSchedule"}]);
        let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
        let node = serde_json::from_value(node).unwrap();
        Self::api(test).create(&PostParams::default(), &node).await.unwrap();
        let made = Self { name };
        made.set_ready(test, "True").await;
        made
    }

    fn api(test: &TestNamespace) -> Api<KubeNode> {
        Api::all(test.client.clone())
    }

    async fn set_ready(&self, test: &TestNamespace, ready: &str) {
        let conditions = json!([{"type": "Ready", "status": ready, "reason": "Tested", "message": "",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        Self::api(test).patch_status(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Vouches that nothing runs on it any more.
    async fn take_out_of_service(&self, test: &TestNamespace) {
        let taints = json!([{"key": "tested", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        Self::api(test).patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(super) async fn remove(&self, test: &TestNamespace) {
        Self::api(test).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// Gives it a pod.
    pub(super) async fn bind(&self, test: &TestNamespace, pod: &Pod) {
        let name = pod.name_any();
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.name}});
        let bound: Result<Value, _> =
            test.pods().create_subresource("binding", &name, &PostParams::default(), &binding).await;
        bound.unwrap();
    }
}

/// Waits until the operator has received all earlier changes of nodes: it restarts another job, which lost
/// its node afterwards.
async fn nodes_are_seen(test: &TestNamespace) {
    let last = Node::make(test, "last").await;
    test.post("last", json!({"workers": {"count": 1, "device": "Cpu"}})).await;
    test.run_on("last", 1, &[&last]).await;
    last.remove(test).await;
    test.when("last", |status| status.attempt == Some(2)).await;
    test.jobs().delete("last", &DeleteParams::background()).await.unwrap();
}

/// The nodes that a pod would rather not be given.
fn avoided(pod: &Pod) -> Vec<String> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let wishes =
        affinity.and_then(|nodes| nodes.preferred_during_scheduling_ignored_during_execution.clone());
    let fields =
        wishes.into_iter().flatten().flat_map(|wish| wish.preference.match_fields.unwrap_or_default());
    fields.flat_map(|field| field.values.unwrap_or_default()).collect()
}

fn pair() -> Value {
    json!({"workers": {"count": 2, "device": "Cpu"}})
}

#[tokio::test]
async fn the_gang_of_a_deleted_node_is_restarted_elsewhere_at_once() {
    let Some(test) = crate::set("gone").await else { return };
    let history = History::of(&test).await;
    let (stays, goes) = (Node::make(&test, "stays").await, Node::make(&test, "goes").await);
    let _operator = test.operator().await;
    test.post("moves", pair()).await;
    let gang = test.run_on("moves", 1, &[&stays, &goes]).await;
    goes.remove(&test).await;
    let status = test.when("moves", |status| status.attempt == Some(2)).await;
    let failure = status.last_failure.unwrap();
    assert_eq!((failure.cause, failure.node.as_ref()), (FailureCause::NodeLost, Some(&goes.name)));
    // The pod on the node that is gone is force-deleted; the other one is its kubelet's to end.
    let second = test.worker("moves", 2).await;
    assert_eq!(second.name_any(), gang[1].name_any());
    assert_eq!(avoided(&second), std::slice::from_ref(&goes.name));
    test.forget(&gang[0]).await;
    test.finish(&test.gang("moves", 2, 2).await).await;
    test.when_true("moves", ConditionType::Complete).await;
    history.check(&test, false).await;
    stays.remove(&test).await;
}

#[tokio::test]
async fn a_pod_on_a_silent_node_keeps_its_name_until_the_node_is_out_of_service() {
    let Some(test) = crate::set("silent").await else { return };
    let history = History::of(&test).await;
    let (stays, silent) = (Node::make(&test, "stays").await, Node::make(&test, "silent").await);
    let _operator = test.operator().await;
    test.post("waits", pair()).await;
    let gang = test.run_on("waits", 1, &[&stays, &silent]).await;
    silent.set_ready(&test, "Unknown").await;
    nodes_are_seen(&test).await;
    let status = test.when_reconciled("waits").await;
    assert_eq!(status.attempt, Some(1), "training may go on without the cluster");
    let soon = DeleteParams::default().grace_period(1);
    test.pods().delete(&gang[1].name_any(), &soon).await.unwrap();
    test.when("waits", |status| status.attempt == Some(2)).await;
    test.forget(&gang[0]).await;
    let first = test.worker("waits", 2).await;
    assert_eq!(first.name_any(), gang[0].name_any());
    let is_stuck = (ConditionStatus::True, "NodeUnreachable".to_owned());
    test.when("waits", |status| reason(status, ConditionType::Stalled) == Some(is_stuck.clone())).await;
    let left = test.pods().get(&gang[1].name_any()).await.unwrap();
    assert_eq!(left.uid(), gang[1].uid(), "a rank whose pod may live gets no second one");
    silent.take_out_of_service(&test).await;
    // Kubernetes evicts by name, and may still evict the pod's replacement.
    let _kubelet = Kubelet::start(&test, |_, _| Some(0));
    test.when_true("waits", ConditionType::Complete).await;
    history.check(&test, false).await;
    stays.remove(&test).await;
    silent.remove(&test).await;
}

#[tokio::test]
async fn a_job_that_is_to_pause_names_the_worker_that_it_cannot_stop_on_a_silent_node() {
    let Some(test) = crate::set("deaf").await else { return };
    let deaf = Node::make(&test, "deaf").await;
    let _operator = test.operator().await;
    let workers = json!({"count": 1, "device": "Cpu"});
    test.post("pauses", json!({"workers": workers, "runPolicy": {"terminationGracePeriodSeconds": 1}})).await;
    test.run_on("pauses", 1, &[&deaf]).await;
    deaf.set_ready(&test, "Unknown").await;
    nodes_are_seen(&test).await;
    test.patch_job("pauses", json!({"runPolicy": {"suspend": true}})).await;
    // Nothing happens after the operator's own deletion that could bring the job to mind.
    let is_stuck = (ConditionStatus::True, "NodeUnreachable".to_owned());
    test.when("pauses", |status| reason(status, ConditionType::Stalled) == Some(is_stuck.clone())).await;
    deaf.take_out_of_service(&test).await;
    test.when_true("pauses", ConditionType::Suspended).await;
    deaf.remove(&test).await;
}

#[tokio::test]
async fn a_gang_on_a_node_that_the_cache_does_not_have_yet_runs_on() {
    let Some(test) = crate::set("behind").await else { return };
    let history = History::of(&test).await;
    // The operator lists nodes, and then hears of no change.
    let faults = Faults::default();
    faults.inject("GET", "/nodes?&watch=true", usize::MAX >> 1, Fault::Hang);
    let all = faults.num_left();
    let _operator = Operator::start(client(&test, &faults, &CrashPoint::never()).await, &test.namespace);
    until("nodes are watched", async || faults.num_left() < all).await;
    let node = Node::make(&test, "new").await;
    test.post("early", pair()).await;
    let gang = test.run_on("early", 1, &[&node, &node]).await;
    let status = test.when_reconciled("early").await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0), "{:?}", status.last_failure);
    // No event reports its deletion either; an uncached read finds it.
    node.remove(&test).await;
    test.set_status(&gang[0], json!({"conditions": [{"type": "Tested", "status": "True"}]})).await;
    let status = test.when("early", |status| status.attempt == Some(2)).await;
    assert_eq!(status.last_failure.unwrap().cause, FailureCause::NodeLost);
    history.check(&test, false).await;
}
