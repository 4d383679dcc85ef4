//! The images, from the project's own Dockerfiles, in pods of a real node.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, LogParams, PostParams};
use rlt_cluster::{Cluster, Options, Shared};
use rlt_tests::{test_image, workspace_root};
use serde_json::json;

static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap"));

/// Maximum time that a test waits for a pod; a short training takes ten seconds on two idle cores.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the manifest of the quickstart, shortened to a few steps.
fn short_quickstart() -> String {
    let manifest = std::fs::read_to_string(workspace_root().join("examples/quickstart/job.yaml")).unwrap();
    let shorter = [
        ("steps: 250", "steps: 10"),
        ("steps: 60", "steps: 5"),
        ("warmupSteps: 5", "warmupSteps: 1"),
        ("evaluateEvery: 15", "evaluateEvery: 5"),
    ];
    shorter.iter().fold(manifest, |text, (long, short)| {
        assert!(text.contains(long), "the quickstart has no {long:?} to shorten");
        text.replace(long, short)
    })
}

/// Returns a pod that satisfies the strictest pod security level, with the manifest of the config map `job`.
fn pod(image: &str, arguments: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": image },
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true, "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" }
            },
            "containers": [{
                "name": "main",
                "image": format!("rlt.local/{image}:test"),
                "imagePullPolicy": "Never",
                "args": arguments,
                "securityContext": {
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] }
                },
                "volumeMounts": [
                    { "name": "job", "mountPath": "/job" },
                    { "name": "runs", "mountPath": "/runs" },
                    { "name": "tmp", "mountPath": "/tmp" }
                ]
            }],
            "volumes": [
                { "name": "job", "configMap": { "name": "job" } },
                { "name": "runs", "emptyDir": {} },
                { "name": "tmp", "emptyDir": {} }
            ]
        }
    }))
    .unwrap()
}

/// Creates a namespace that enforces restricted pods, with the manifest in it.
async fn namespace_with_job(cluster: &Cluster, purpose: &str, manifest: String) -> Api<Pod> {
    let namespace = cluster.namespace(purpose).await.unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    assert!(cluster.kubectl().args(["label", "namespace", &namespace, label]).status().unwrap().success());
    let client = cluster.client().await.unwrap();
    let job = json!({ "metadata": { "name": "job" }, "data": { "job.yaml": manifest } });
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    maps.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    Api::namespaced(client, &namespace)
}

/// Waits for the pod's end and returns its exit code.
async fn exit_code(pods: &Api<Pod>, name: &str) -> i32 {
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            let statuses = pods.get(name).await.unwrap().status.and_then(|status| status.container_statuses);
            let state = statuses.unwrap_or_default().pop().and_then(|status| status.state);
            if let Some(end) = state.and_then(|state| state.terminated) {
                return end.exit_code;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    ended.await.unwrap_or_else(|_| panic!("{name} did not end in {PATIENCE:?}"))
}

#[tokio::test]
async fn the_quickstart_trains_to_its_end_in_a_restricted_pod() {
    let Some(cluster) = CLUSTER.get() else { return };
    cluster.load_image(&test_image("rlt-trainer")).unwrap();
    let pods = namespace_with_job(cluster, "trains", short_quickstart()).await;
    let train = ["worker", "--manifest", "/job/job.yaml", "--output", "/runs/quickstart"];
    pods.create(&PostParams::default(), &pod("rlt-trainer", &train)).await.unwrap();
    let code = exit_code(&pods, "rlt-trainer").await;
    let log = pods.logs("rlt-trainer", &LogParams::default()).await.unwrap();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("5/5"), "{log}");
}

#[tokio::test]
async fn the_operator_starts_in_a_restricted_pod() {
    let Some(cluster) = CLUSTER.get() else { return };
    cluster.load_image(&test_image("rlt-operator")).unwrap();
    let pods = namespace_with_job(cluster, "operates", String::new()).await;
    pods.create(&PostParams::default(), &pod("rlt-operator", &["--version"])).await.unwrap();
    let code = exit_code(&pods, "rlt-operator").await;
    let log = pods.logs("rlt-operator", &LogParams::default()).await.unwrap();
    assert_eq!((code, log.trim()), (0, concat!("rlt-operator ", env!("CARGO_PKG_VERSION"))));
}
