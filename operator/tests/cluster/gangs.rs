//! Gangs of the real scheduler, created by the operator: all workers are bound, or none is.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_api::status::{Condition, ConditionType, RLTrainingJobStatus};
use rlt_cluster::{FakeNodes, Options, Shared};
use serde_json::{Value, json};

use crate::test_namespace::{TestNamespace, until};

/// Two nodes, each with room for one worker of the tests.
static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_gang_scheduling().with_fake_nodes(FakeNodes::new(2)));

fn workers(count: u32) -> Value {
    json!({"workers": {"count": count, "device": "Cpu", "resources": {"cpu": "20"}}})
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().unwrap().node_name.is_some()
}

fn is_refused(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.reason.as_deref() == Some("Unschedulable")))
}

impl TestNamespace {
    pub(crate) fn pod_groups(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("scheduling.k8s.io", "v1alpha2", "PodGroup");
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&kind))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_does_not_fit_binds_no_worker_and_every_attempt_has_a_group_of_its_own() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "gangs").await;
    let _operator = test.operator().await;
    test.post("large", workers(3)).await;
    let refused = |pods: &[Pod]| pods.len() == 3 && pods.iter().all(is_refused);
    assert!(!test.when_pods("large", refused).await.iter().any(is_bound));
    test.post("small", workers(2)).await;
    test.when_true("small", ConditionType::PodsReady).await;
    let pods = test.when_pods("small", |pods| pods.iter().all(is_bound)).await;
    assert!(!test.when_pods("large", |_| true).await.iter().any(is_bound));
    let first = DeleteParams::default().grace_period(0);
    test.pods().delete(&pods[0].name_any(), &first).await.unwrap();
    test.when("small", |status| status.attempt == Some(2) && status.ready.as_deref() == Some("2/2")).await;
    // The controller manager removes a group once it has seen that no pod is left in it.
    let only_the_newest = async || {
        let groups = test.pod_groups().list(&ListParams::default()).await.unwrap();
        groups.iter().map(ResourceExt::name_any).eq(["large-trainer-1", "small-trainer-2"])
    };
    until("only the newest groups are left", only_the_newest).await;
    // Until this process ends, the scheduler would try the gang again without a pause, on a core of its own.
    test.jobs().delete("large", &DeleteParams::default()).await.unwrap();
    test.when_pods("large", <[Pod]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_group_of_another_owner_is_in_the_status_and_no_pod_joins_it() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "groups").await;
    let operator = test.operator_in_roles().await;
    let group = |name: &str, more: Value| {
        let mut metadata = json!({"name": name});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": 2}}});
        json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata, "spec": spec})
    };
    // The finalizer delays garbage collection, as another controller's finalizer may.
    let earlier = json!({"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "reborn", "uid": "earlier"});
    test.create(&[
        group("taken-trainer-1", json!({"labels": {"app.kubernetes.io/managed-by": "another"}})),
        group("reborn-trainer-1", json!({"ownerReferences": [earlier], "finalizers": ["example.com/held"]})),
    ]);
    let message = |status: &RLTrainingJobStatus, type_: ConditionType| {
        let conflicts = |one: &&Condition| one.type_ == type_ && one.reason == "NameConflict";
        status.conditions.iter().find(conflicts).map(|condition| condition.message.clone())
    };
    for (name, type_, owner) in [
        ("taken", ConditionType::Stalled, "managed by `another`"),
        ("reborn", ConditionType::Reconciling, "an earlier job of this name"),
    ] {
        // Small ones, beside the gangs of other tests.
        let workers = json!({"workers": {"count": 2, "device": "Cpu", "resources": {"cpu": "1"}}});
        test.post(name, workers).await;
        let status = test.when(name, |status| message(status, type_).is_some()).await;
        let message = message(&status, type_).unwrap();
        assert!(message.contains(&format!("{name}-trainer-1")) && message.contains(owner), "{message}");
        operator.reconciles_all(&test).await;
        assert!(test.when_pods(name, |_| true).await.is_empty());
    }
    let held = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    test.pod_groups().patch("reborn-trainer-1", &PatchParams::default(), &held).await.unwrap();
    let _ = test.pod_groups().delete("reborn-trainer-1", &DeleteParams::default()).await;
    test.when_pods("reborn", |pods| pods.len() == 2).await;
}
