//! The end of a job: its pods by policy, itself by its TTL, and no objects once it is deleted.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use rlt_api::status::ConditionType;
use serde_json::json;

use crate::test_namespace::{TestNamespace, until};

impl TestNamespace {
    pub(crate) async fn when_gone(&self, name: &str) {
        let is_gone = async || self.jobs().get_opt(name).await.unwrap().is_none();
        until(&format!("{name} is still there"), is_gone).await;
    }
}

#[tokio::test]
async fn a_finished_job_keeps_its_pods_unless_all_are_to_be_cleaned() {
    let Some(test) = crate::set("cleaning").await else { return };
    let _operator = test.operator().await;
    test.post("keeps", json!({})).await;
    test.post("cleans", json!({"runPolicy": {"cleanPodPolicy": "All"}})).await;
    for job in ["keeps", "cleans"] {
        let pod = test.worker(job, 1).await;
        test.run(&pod).await;
        test.end(&pod, 0, "").await;
        test.when_true(job, ConditionType::Complete).await;
    }
    test.when_pods("cleans", <[_]>::is_empty).await;
    assert_eq!(test.when_pods("keeps", |_| true).await.len(), 1);
}

#[tokio::test]
async fn a_finished_job_is_deleted_in_time_unless_it_would_be_applied_anew() {
    let Some(test) = crate::set("ttl").await else { return };
    let _operator = test.operator().await;
    let policy = json!({"runPolicy": {"ttlSecondsAfterFinished": 1}});
    test.post("goes", policy.clone()).await;
    let mut tracked = test.manifest("stays", &policy);
    tracked.annotations_mut().insert("argocd.argoproj.io/tracking-id".into(), "app:job".into());
    test.jobs().create(&PostParams::default(), &tracked).await.unwrap();
    for job in ["goes", "stays"] {
        let pod = test.worker(job, 1).await;
        test.run(&pod).await;
        test.end(&pod, 0, "").await;
    }
    test.when_gone("goes").await;
    test.when_pods("stays", <[_]>::is_empty).await;
    test.when_true("stays", ConditionType::Complete).await;
}

#[tokio::test]
async fn a_deleted_job_takes_everything_with_it_and_one_of_the_same_name_begins_anew() {
    let Some(test) = crate::set("again").await else { return };
    let _operator = test.operator().await;
    let first = test.post("again", json!({})).await;
    test.run(&test.worker("again", 1).await).await;
    test.when_true("again", ConditionType::PodsReady).await;
    test.jobs().delete("again", &DeleteParams::background()).await.unwrap();
    test.when_gone("again").await;
    let second = test.post("again", json!({})).await;
    let owner = |pod: &k8s_openapi::api::core::v1::Pod| pod.owner_references()[0].uid.clone();
    let pods =
        test.when_pods("again", |pods| pods.iter().any(|pod| owner(pod) == second.uid().unwrap())).await;
    assert_eq!(pods.len(), 1);
    assert_ne!(first.uid(), second.uid());
    assert_eq!(test.when("again", |status| status.attempt.is_some()).await.attempt, Some(1));
}
