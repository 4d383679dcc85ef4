//! Gangs of the real scheduler: all of a group's pods are bound, or none is.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use rlt_cluster::{Cluster, FakeNodes, Options, Shared};
use serde_json::{Value, json};

use crate::PATIENCE;

/// Two nodes of eight accelerators: room for two pods that take eight each.
static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_gang_scheduling().with_fake_nodes(FakeNodes::new(2)));

/// Makes objects of kinds for which this process has no types.
fn create(cluster: &Cluster, namespace: &str, objects: &[Value]) {
    let mut kubectl = cluster.kubectl();
    let mut child = kubectl
        .args(["create", "-n", namespace, "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// A group of `num_pods` pods that need a whole node each.
fn gang(name: &str, num_pods: usize) -> Vec<Value> {
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": { "name": name },
        "spec": { "schedulingPolicy": { "gang": { "minCount": num_pods } } }
    });
    let pod = |index: usize| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": format!("{name}-{index}") },
            "spec": {
                "schedulingGroup": { "podGroupName": name },
                "containers": [{
                    "name": "main",
                    "image": "rlt.local/none",
                    "resources": { "limits": { "nvidia.com/gpu": "8" } }
                }]
            }
        })
    };
    std::iter::once(group).chain((0..num_pods).map(pod)).collect()
}

/// Pods that are bound to a node, and pods of which the scheduler has said that they do not fit.
async fn bound_and_refused(pods: &Api<Pod>) -> (usize, usize) {
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    let is_bound = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.is_some();
    let is_refused = |pod: &&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.reason.as_deref() == Some("Unschedulable")))
    };
    (all.iter().filter(is_bound).count(), all.iter().filter(is_refused).count())
}

#[tokio::test]
async fn a_gang_that_does_not_fit_binds_no_pod_and_one_that_fits_binds_all() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("gangs").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let until = async |wanted: (usize, usize)| {
        let reached = tokio::time::timeout(PATIENCE, async {
            while bound_and_refused(&pods).await != wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if reached.await.is_err() {
            panic!("bound and refused are {:?}, expected {wanted:?}", bound_and_refused(&pods).await);
        }
    };
    create(cluster, &namespace, &gang("large", 3));
    until((0, 3)).await;
    create(cluster, &namespace, &gang("small", 2));
    until((2, 3)).await;
}
