//! The proxy that makes calls fail: each kind of failure is what a client would see of a real one.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use rlt_cluster::{Fault, FaultProxy, Faults, Options, Shared};
use serde_json::json;

static CLUSTER: Shared = Shared::new(|| Options::control_plane().without_scheduler());

/// Longest that a role takes to count, and that a watch lives which breaks; the API server itself would end
/// it after minutes.
const PATIENCE: Duration = Duration::from_secs(60);

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

/// A proxy, and the config maps of a namespace as an account sees them through it that may edit them.
async fn behind_a_proxy(purpose: &str) -> Option<(Faults, FaultProxy, Api<ConfigMap>)> {
    let cluster = CLUSTER.get()?;
    let namespace = cluster.namespace(purpose).await.unwrap();
    let faults = Faults::default();
    let proxy = cluster.fault_proxy(&faults).await.unwrap();
    let client = cluster.client_through(&proxy, &namespace, "editor").await.unwrap();
    let subject = format!("--serviceaccount={namespace}:editor");
    let bind = ["create", "rolebinding", "edits", "--clusterrole=edit", &subject, "-n", &namespace];
    assert!(cluster.kubectl().args(bind).output().unwrap().status.success());
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let role_counts = async {
        while maps.get_opt("none").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, role_counts).await.is_ok(),
        "the role of the account never counts"
    );
    Some((faults, proxy, maps))
}

fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

#[tokio::test]
async fn a_refused_call_never_happens_and_the_next_does() {
    let Some((faults, _proxy, maps)) = behind_a_proxy("refused").await else { return };
    let create = || async { maps.create(&PostParams::default(), &config_map("one")).await };
    for refused in [409, 500] {
        faults.inject("POST", "/configmaps", 1, Fault::Refuse(refused));
        assert_eq!(code(&create().await.unwrap_err()), Some(refused));
        assert!(maps.get_opt("one").await.unwrap().is_none());
    }
    create().await.unwrap();
    assert_eq!(faults.num_left(), 0);
}

#[tokio::test]
async fn a_lost_answer_means_an_executed_call_and_a_lost_request_does_not() {
    let Some((faults, _proxy, maps)) = behind_a_proxy("lost").await else { return };
    for (name, fault) in [("lost-answer", Fault::LoseAnswer), ("lost-request", Fault::LoseRequest)] {
        faults.inject("POST", "/configmaps", 1, fault);
        let lost = maps.create(&PostParams::default(), &config_map(name)).await.unwrap_err();
        assert_eq!(code(&lost), None, "{lost}");
    }
    maps.get("lost-answer").await.unwrap();
    assert!(maps.get_opt("lost-request").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_breaks_or_falls_silent() {
    let Some((faults, proxy, maps)) = behind_a_proxy("watches").await else { return };
    maps.create(&PostParams::default(), &config_map("seen")).await.unwrap();
    let is_seen = |event: &WatchEvent<ConfigMap>| matches!(event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("seen"));
    let watch = async || maps.watch(&WatchParams::default(), "0").await.map(futures::StreamExt::boxed);

    faults.inject("GET", "watch=true", 1, Fault::Break(Duration::ZERO));
    let broken = async {
        // The connection may break before the head of the answer is sent.
        let Ok(events) = watch().await else { return Vec::new() };
        events.collect().await
    };
    let broken = tokio::time::timeout(PATIENCE, broken).await.expect("a broken watch ends");
    assert!(!broken.iter().flatten().any(is_seen), "{broken:?}");
    assert_eq!(faults.num_left(), 0);

    faults.inject("GET", "watch=true", 1, Fault::Stall(Duration::ZERO));
    let silent = watch().await.unwrap();
    let mut healthy = watch().await.unwrap();
    while !is_seen(&healthy.try_next().await.unwrap().unwrap()) {}
    let falls_silent = async {
        while faults.num_silent() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, falls_silent).await.expect("a stalled watch falls silent and stays open");
    // The end of the proxy ends the silence, so the watch ends with all that it has ever received.
    drop((proxy, healthy));
    let received: Vec<_> =
        tokio::time::timeout(PATIENCE, silent.collect()).await.expect("it ends with its proxy");
    assert!(!received.iter().flatten().any(is_seen), "{received:?}");
}

#[tokio::test]
async fn a_delayed_call_happens_later() {
    let Some((faults, _proxy, maps)) = behind_a_proxy("delayed").await else { return };
    let delay = Duration::from_millis(400);
    faults.inject("GET", "/configmaps", 1, Fault::Delay(delay));
    let asked = Instant::now();
    assert!(maps.get_opt("none").await.unwrap().is_none());
    assert!(asked.elapsed() >= delay);
}
