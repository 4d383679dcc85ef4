//! Nodes that exist in the API alone: the real scheduler fills them, and their pods end as annotations say.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use rlt_cluster::{FakeNodes, Options, Shared};
use serde_json::{Value, json};

use crate::PATIENCE;

static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_fake_nodes(FakeNodes::new(3)).with_gang_scheduling());

fn pod(name: &str, gpus: u32, annotations: Value) -> Pod {
    let limits = json!({ "nvidia.com/gpu": gpus.to_string() });
    serde_json::from_value(json!({
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": "rlt.local/none", "resources": { "limits": limits } }]
        }
    }))
    .unwrap()
}

async fn wait_for_phase(pods: &Api<Pod>, name: &str, phase: &str) -> Pod {
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            let pod = pods.get(name).await.unwrap();
            if pod.status.as_ref().unwrap().phase.as_deref() == Some(phase) {
                return pod;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{name} did not become {phase}"))
}

/// The pods that run, once there are so many and none of them is being deleted.
async fn wait_for_running(pods: &Api<Pod>, count: usize) -> Vec<Pod> {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            let mut all = pods.list(&Default::default()).await.unwrap().items;
            all.retain(runs);
            if all.len() == count {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not {count} pods became Running"))
}

#[tokio::test]
async fn pods_run_and_accelerators_are_accounted_for() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("gpus").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    for name in ["a", "b", "c", "d"] {
        pods.create(&PostParams::default(), &pod(name, 8, json!({}))).await.unwrap();
    }
    // Which of them waits is the scheduler's choice.
    let running = wait_for_running(&pods, 3).await;
    let node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone();
    let nodes: BTreeSet<_> = running.iter().map(node).collect();
    assert_eq!(nodes.len(), 3, "eight of eight accelerators leave no room for another pod: {nodes:?}");
    let all = pods.list(&Default::default()).await.unwrap();
    assert_eq!(all.iter().filter(|pod| node(pod).is_none()).count(), 1);
    pods.delete(&running[0].name_any(), &DeleteParams::default()).await.unwrap();
    let others = wait_for_running(&pods, 3).await;
    assert!(others.iter().all(|pod| pod.name_any() != running[0].name_any()));
    pods.delete_collection(&DeleteParams::default(), &Default::default()).await.unwrap();
}

#[tokio::test]
async fn pods_start_and_end_as_their_annotations_say() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("ends").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let late = pod("late", 0, json!({ "fake.rltraining.dev/start-after": "700ms" }));
    let never = pod("never", 0, json!({ "fake.rltraining.dev/start-after": "1h" }));
    let done = pod("done", 0, json!({ "fake.rltraining.dev/exit-code": "0" }));
    for pod in [&never, &late, &done, &pod("dies", 0, json!({}))] {
        pods.create(&PostParams::default(), pod).await.unwrap();
    }
    wait_for_phase(&pods, "done", "Succeeded").await;
    wait_for_phase(&pods, "dies", "Running").await;
    let killed = json!({ "metadata": { "annotations": {
        "fake.rltraining.dev/exit-code": "137", "fake.rltraining.dev/exit-reason": "OOMKilled"
    }}});
    pods.patch("dies", &PatchParams::default(), &Patch::Merge(killed)).await.unwrap();
    let status = wait_for_phase(&pods, "dies", "Failed").await.status.unwrap();
    let end = status.container_statuses.unwrap().remove(0).state.unwrap().terminated.unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("OOMKilled")));
    wait_for_phase(&pods, "late", "Running").await;
    assert_eq!(pods.get("never").await.unwrap().status.unwrap().phase.as_deref(), Some("Pending"));
}
