//! A real node: pods are processes, with logs, exit codes, addresses and names.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, LogParams, PostParams};
use rlt_cluster::{Options, PROBE_IMAGE, Shared};
use serde_json::{Value, json};

use crate::PATIENCE;

static CLUSTER: Shared = Shared::new(|| Options::control_plane().with_real_node());

/// A pod as the strictest of namespaces takes it, of the group `group`.
fn pod(name: &str, group: &str, arguments: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "group": group } },
        "spec": {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": group,
            "terminationGracePeriodSeconds": 2,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "main",
                "image": PROBE_IMAGE,
                "args": arguments,
                "imagePullPolicy": "Never",
                "securityContext": {
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] }
                }
            }]
        }
    }))
    .unwrap()
}

fn service(name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

/// Waits for the pod's end; its exit code and what it wrote.
async fn ended(pods: &Api<Pod>, name: &str) -> (i32, String) {
    let code = tokio::time::timeout(PATIENCE, async {
        loop {
            let statuses = pods.get(name).await.unwrap().status.and_then(|status| status.container_statuses);
            let state = statuses.unwrap_or_default().pop().and_then(|status| status.state);
            if let Some(end) = state.and_then(|state| state.terminated) {
                return end.exit_code;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let code = code.await.unwrap_or_else(|_| panic!("{name} did not end"));
    (code, pods.logs(name, &LogParams::default()).await.unwrap())
}

#[tokio::test]
async fn exit_codes_and_logs_are_read() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("exits").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    for code in ["0", "80"] {
        let name = format!("exit-{code}");
        pods.create(&PostParams::default(), &pod(&name, "exits", &["exit", code])).await.unwrap();
        assert_eq!(ended(&pods, &name).await, (code.parse().unwrap(), format!("ending with {code}\n")));
    }
}

#[tokio::test]
async fn pods_find_each_other_by_name_and_by_service() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("names").await.unwrap();
    let client = cluster.client().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let services: Api<Service> = Api::namespaced(client, &namespace);
    let selector = json!({ "group": "gang" });
    let ports = json!([{ "port": 7000 }]);
    let headless = json!({ "clusterIP": "None", "selector": selector, "publishNotReadyAddresses": true, "ports": ports });
    services.create(&PostParams::default(), &service("gang", headless)).await.unwrap();
    let balanced = service("balanced", json!({ "selector": selector, "ports": ports }));
    let address =
        services.create(&PostParams::default(), &balanced).await.unwrap().spec.unwrap().cluster_ip.unwrap();
    pods.create(&PostParams::default(), &pod("rank-0", "gang", &["serve", ":7000"])).await.unwrap();
    for (name, target) in [("by-name", "rank-0.gang:7000"), ("by-service", "balanced:7000")] {
        pods.create(&PostParams::default(), &pod(name, "asks", &["connect", target])).await.unwrap();
    }
    for name in ["by-name", "by-service"] {
        assert_eq!(ended(&pods, name).await, (0, "rank-0\n".to_owned()), "{name}");
    }
    // The test itself is on the cluster's network too.
    let answer = std::net::TcpStream::connect((address.as_str(), 7000)).and_then(std::io::read_to_string);
    assert_eq!(answer.unwrap(), "rank-0");
    pods.delete("rank-0", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn pods_reach_a_server_of_the_test() {
    let Some(cluster) = CLUSTER.get() else { return };
    let namespace = cluster.namespace("host").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let listener = std::net::TcpListener::bind((cluster.host_address(), 0)).unwrap();
    let target = listener.local_addr().unwrap().to_string();
    pods.create(&PostParams::default(), &pod("asks", "asks", &["connect", &target])).await.unwrap();
    let served = std::thread::spawn(move || {
        use std::io::Write;
        listener.accept().unwrap().0.write_all(b"the test").unwrap();
    });
    assert_eq!(ended(&pods, "asks").await, (0, "the test\n".to_owned()));
    served.join().unwrap();
}
