//! `kubectl scale`, and the NetworkPolicy of workers.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use rlt_api::status::ConditionType;
use serde_json::json;

use crate::test_namespace::{TestNamespace, until};

fn scale(test: &TestNamespace, job: &str, count: u32) -> std::process::Output {
    let count = format!("--replicas={count}");
    let scale = ["scale", "rltj", job, &count, "-n", &test.namespace];
    test.cluster.kubectl().args(scale).output().unwrap()
}

#[tokio::test]
async fn a_running_gang_cannot_be_resized_and_a_suspended_one_resumes_with_the_new_size() {
    let Some(test) = crate::set("scale").await else { return };
    let _operator = test.operator().await;
    test.post("sized", json!({"workers": {"device": "Cpu"}})).await;
    test.run(&test.worker("sized", 1).await).await;
    let status = test.when_true("sized", ConditionType::PodsReady).await;
    assert_eq!(status.replicas, Some(1));
    let refused = scale(&test, "sized", 2);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("can be changed only while runPolicy.suspend is true"), "{words}");
    test.patch_job("sized", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("sized", ConditionType::Suspended).await;
    let scaled = scale(&test, "sized", 2);
    assert!(scaled.status.success(), "{}", String::from_utf8_lossy(&scaled.stderr));
    test.patch_job("sized", json!({"runPolicy": {"suspend": false}})).await;
    let pods = test.when_pods("sized", |pods| pods.len() == 2).await;
    for pod in &pods {
        test.run(pod).await;
    }
    test.when("sized", |status| status.replicas == Some(2) && status.ready.as_deref() == Some("2/2")).await;
    let selector = test.status("sized").await.selector.unwrap();
    let selected = test.pods().list(&kube::api::ListParams::default().labels(&selector)).await.unwrap();
    assert_eq!(selected.items.len(), 2, "an autoscaler finds the workers");
}

#[tokio::test]
async fn a_job_has_a_network_policy_unless_it_wants_none() {
    let Some(test) = crate::set("network").await else { return };
    let _operator = test.operator().await;
    let policies: Api<NetworkPolicy> = Api::namespaced(test.client.clone(), &test.namespace);
    test.post("guarded", json!({})).await;
    test.worker("guarded", 1).await;
    let is_guarded = async |wished: bool| {
        let is_as_wished = async || policies.get_opt("guarded-trainer").await.unwrap().is_some() == wished;
        until(if wished { "the policy is missing" } else { "the policy is still there" }, is_as_wished).await;
    };
    is_guarded(true).await;
    test.patch_job("guarded", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("guarded", ConditionType::Suspended).await;
    let open = json!({"runPolicy": {"suspend": false}, "workers": {"network": "Open"}});
    test.patch_job("guarded", open).await;
    test.worker("guarded", 2).await;
    is_guarded(false).await;
}
