//! Gangs of the real scheduler, as the operator makes them: all workers are bound, or none is.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_api::status::ConditionType;
use rlt_cluster::{FakeNodes, Options, Shared};
use serde_json::{Value, json};

use crate::stage::Stage;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_does_not_fit_binds_no_worker_and_every_attempt_has_a_group_of_its_own() {
    let Some(cluster) = CLUSTER.get() else { return };
    let stage = Stage::on(cluster, "gangs").await;
    let _operator = stage.operator().await;
    stage.post("large", workers(3)).await;
    let refused = |pods: &[Pod]| pods.len() == 3 && pods.iter().all(is_refused);
    assert!(!stage.when_pods("large", refused).await.iter().any(is_bound));
    stage.post("small", workers(2)).await;
    stage.when_true("small", ConditionType::PodsReady).await;
    let pods = stage.when_pods("small", |pods| pods.iter().all(is_bound)).await;
    assert!(!stage.when_pods("large", |_| true).await.iter().any(is_bound));
    let first = DeleteParams::default().grace_period(0);
    stage.pods().delete(&pods[0].name_any(), &first).await.unwrap();
    stage.when("small", |status| status.attempt == Some(2) && status.ready.as_deref() == Some("2/2")).await;
    let kind = GroupVersionKind::gvk("scheduling.k8s.io", "v1alpha2", "PodGroup");
    let groups: Api<DynamicObject> =
        Api::namespaced_with(stage.client.clone(), &stage.namespace, &ApiResource::from_gvk(&kind));
    let groups = groups.list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = groups.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["large-trainer-1", "small-trainer-2"]);
}
