//! Failures of pods: evicted, out of memory, without an image, unschedulable, without their claim.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, EvictParams, Preconditions};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
use serde_json::{Value, json};

use super::nodes::Node;
use crate::history::History;
use crate::test_namespace::{TestNamespace, container, ended, is_true, reason, until};

/// Specification of two workers.
fn pair() -> Value {
    json!({"workers": {"count": 2, "device": "Cpu"}})
}

impl TestNamespace {
    /// The pods of all workers of an attempt, by their index.
    pub(super) async fn gang(&self, name: &str, attempt: u32, count: usize) -> Vec<Pod> {
        let label = attempt.to_string();
        let is_of = |pod: &&Pod| pod.labels()[rlt_objects::labels::ATTEMPT] == label;
        let all = self.when_pods(name, |pods| pods.iter().filter(is_of).count() == count).await;
        let mut gang: Vec<_> = all.into_iter().filter(|pod| is_of(&pod)).collect();
        gang.sort_by_key(|pod| pod.name_any());
        gang
    }

    /// Runs all workers of an attempt, each on this node.
    pub(super) async fn run_on(&self, name: &str, attempt: u32, nodes: &[&Node]) -> Vec<Pod> {
        let gang = self.gang(name, attempt, nodes.len()).await;
        for (pod, node) in gang.iter().zip(nodes) {
            node.bind(self, pod).await;
            self.run(pod).await;
        }
        self.when_true(name, ConditionType::PodsReady).await;
        gang
    }

    /// Runs all workers of a gang to a good end, the first one last: with its end the job is complete, and
    /// others are removed.
    pub(super) async fn finish(&self, gang: &[Pod]) {
        for pod in gang.iter().rev() {
            self.run(pod).await;
            self.end(pod, 0, "").await;
        }
    }

    /// Plays the kubelet: the pod is gone, but not a later one of its name.
    pub(crate) async fn forget(&self, pod: &Pod) {
        let this = Preconditions { uid: pod.uid(), ..Preconditions::default() };
        let at_once = DeleteParams::default().grace_period(0).preconditions(this);
        let _ = self.pods().delete(&pod.name_any(), &at_once).await;
    }
}

#[tokio::test]
async fn an_evicted_worker_saves_a_checkpoint_with_the_others_and_the_next_attempt_goes_on() {
    let Some(test) = crate::set("eviction").await else { return };
    let history = History::of(&test).await;
    let node = Node::make(&test, "a").await;
    let _operator = test.operator().await;
    test.post("drained", pair()).await;
    let gang = test.run_on("drained", 1, &[&node, &node]).await;
    test.pods().evict(&gang[0].name_any(), &EvictParams::default()).await.unwrap();
    let leaving = test
        .when("drained", |status| {
            reason(status, ConditionType::Reconciling).is_some_and(|(_, why)| why == "Disrupted")
        })
        .await;
    assert_eq!((leaving.attempt, leaving.failures_by_cause.len()), (Some(1), 0), "it still has its time");
    for pod in [&gang[1], &gang[0]] {
        test.end(pod, 80, "").await;
    }
    // A pod that is gone has no exit code any more.
    test.when("drained", |status| status.attempt == Some(2)).await;
    for pod in &gang {
        test.forget(pod).await;
    }
    let next = test.gang("drained", 2, 2).await;
    let status = test.status("drained").await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
    let failure = status.last_failure.unwrap();
    assert_eq!((failure.pod, failure.exit_code), (Some(gang[0].name_any()), Some(80)));
    assert!(failure.message.contains("EvictionByEvictionAPI"), "{}", failure.message);
    test.finish(&next).await;
    test.when_true("drained", ConditionType::Complete).await;
    history.check(&test, false).await;
    node.remove(&test).await;
}

#[tokio::test]
async fn a_worker_that_needs_too_much_memory_is_tried_once_more() {
    let Some(test) = crate::set("memory").await else { return };
    let history = History::of(&test).await;
    let _operator = test.operator().await;
    test.post("hungry", json!({})).await;
    for attempt in [1, 2] {
        let pod = test.worker("hungry", attempt).await;
        test.run(&pod).await;
        let mut killed = ended(137, "");
        killed["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled".into();
        test.set_status(&pod, killed).await;
    }
    let status = test.when_true("hungry", ConditionType::Failed).await;
    assert_eq!(status.failures_by_cause, [(FailureCause::OutOfMemory, 2)].into());
    let failure = status.last_failure.unwrap();
    assert!(failure.message.contains("retries.outOfMemory of 1 used up"), "{}", failure.message);
    assert!(failure.advice.contains("resources.memory"), "{}", failure.advice);
    history.check(&test, false).await;
}

#[tokio::test]
async fn a_failed_start_reports_the_message_of_kubelet_or_scheduler() {
    let Some(test) = crate::set("no-start").await else { return };
    let _operator = test.operator().await;
    for name in ["imageless", "homeless"] {
        test.post(name, json!({})).await;
    }
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image: typo"}});
    let conditions = json!([{"type": "PodScheduled", "status": "True"}]);
    let status =
        json!({"phase": "Pending", "containerStatuses": [container(waiting)], "conditions": conditions});
    let pod = test.worker("imageless", 1).await;
    let node = Node::make(&test, "a").await;
    node.bind(&test, &pod).await;
    test.set_status(&pod, status).await;
    let is_refused = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.reason.as_deref() == Some("Unschedulable")))
    };
    test.when_pods("homeless", |pods| pods.iter().any(is_refused)).await;
    // The operator has seen a later change of a pod, so it has seen those of both.
    test.post("later", json!({})).await;
    test.run(&test.worker("later", 1).await).await;
    test.when_true("later", ConditionType::PodsReady).await;
    for name in ["imageless", "homeless"] {
        test.patch_job(name, json!({"runPolicy": {"startupDeadlineSeconds": 1}})).await;
    }
    for (name, cause, words) in [
        ("imageless", FailureCause::StartFailed, "ImagePullBackOff: no such image: typo"),
        ("homeless", FailureCause::NotScheduled, "available"),
    ] {
        let status = test.when_true(name, ConditionType::Failed).await;
        let failure = status.last_failure.clone().unwrap();
        assert_eq!((failure.cause, status.attempt), (cause, Some(1)));
        assert!(failure.message.contains(words), "{}", failure.message);
        assert_eq!(reason(&status, ConditionType::Stalled).unwrap().0, ConditionStatus::True);
    }
    test.forget(&pod).await;
    node.remove(&test).await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_the_gang_starts_is_made_again_in_the_same_attempt() {
    let Some(test) = crate::set("replaced").await else { return };
    let history = History::of(&test).await;
    let _operator = test.operator().await;
    test.post("early", pair()).await;
    let gang = test.gang("early", 1, 2).await;
    test.run(&gang[0]).await;
    test.forget(&gang[1]).await;
    let is_new = |pod: &Pod| pod.name_any() == gang[1].name_any() && pod.uid() != gang[1].uid();
    test.when_pods("early", |pods| pods.iter().any(is_new)).await;
    for pod in test.gang("early", 1, 2).await {
        test.run(&pod).await;
    }
    let status = test.when("early", |status| is_true(status, ConditionType::PodsReady)).await;
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0));
    history.check(&test, false).await;
}

#[tokio::test]
async fn the_volume_claim_of_a_job_outlives_it_and_serves_the_next_one_of_its_name() {
    let Some(test) = crate::set("claims").await else { return };
    let _operator = test.operator().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
    let storage = json!({"workers": {"storage": {"size": "1Gi"}}});
    let mut uids = Vec::new();
    for _ in 0..2 {
        test.post("kept", storage.clone()).await;
        test.worker("kept", 1).await;
        // It is made beside the pod, which waits for it.
        until("a claim is made", async || claims.get_opt("kept-storage").await.unwrap().is_some()).await;
        let claim = claims.get("kept-storage").await.unwrap();
        uids.push(claim.uid().unwrap());
        test.jobs().delete("kept", &DeleteParams::background()).await.unwrap();
        test.when_gone("kept").await;
        test.when_pods("kept", <[_]>::is_empty).await;
    }
    assert_eq!(uids[0], uids[1]);
}

/// The kubelet starts no pod on a claim that is being deleted, and the controller manager keeps the claim
/// while a pod that uses it has a node.
#[tokio::test]
async fn a_claim_that_is_deleted_before_its_pods_start_is_replaced_without_using_a_retry() {
    let Some(test) = crate::set("late-claim").await else { return };
    let history = History::of(&test).await;
    let node = Node::make(&test, "a").await;
    let _operator = test.operator_in_roles().await;
    let workers = json!({"count": 2, "device": "Cpu", "storage": {"size": "1Gi"}});
    test.post("late", json!({"workers": workers})).await;
    let first = test.gang("late", 1, 2).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
    until("a claim is made", async || claims.get_opt("late-storage").await.unwrap().is_some()).await;
    let deleted = claims.get("late-storage").await.unwrap();
    for pod in &first {
        node.bind(&test, pod).await;
    }
    claims.delete("late-storage", &DeleteParams::default()).await.unwrap();
    let waits_for_claim = |status: &RLTrainingJobStatus| {
        status.attempt == Some(2)
            && reason(status, ConditionType::Reconciling).is_some_and(|(_, why)| why == "ClaimTerminating")
    };
    let status = test.when("late", waits_for_claim).await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
    let failure = status.last_failure.unwrap();
    assert!(failure.message.contains("late-storage"), "{}", failure.message);
    let is_leaving = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let leaving = test.when_pods("late", |pods| pods.iter().all(is_leaving)).await;
    assert_eq!(leaving.len(), 2, "no kubelet has ended them yet");
    assert_eq!(claims.get("late-storage").await.unwrap().uid(), deleted.uid());

    for pod in &first {
        test.forget(pod).await;
    }
    let second = test.gang("late", 2, 2).await;
    let is_replaced = async || {
        let found = claims.get_opt("late-storage").await.unwrap();
        found.is_some_and(|claim| claim.uid() != deleted.uid())
    };
    until("another claim is made", is_replaced).await;
    test.finish(&second).await;
    test.when_true("late", ConditionType::Complete).await;
    history.check(&test, false).await;
    node.remove(&test).await;
}
