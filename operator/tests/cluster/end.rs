//! What is left of a job: its pods by policy, itself by its time, and nothing once it is deleted.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use rlt_api::status::ConditionType;
use serde_json::json;

use crate::stage::Stage;

impl Stage {
    pub(crate) async fn when_gone(&self, name: &str) {
        let begin = std::time::Instant::now();
        while self.jobs().get_opt(name).await.unwrap().is_some() {
            assert!(begin.elapsed().as_secs() < 30, "{name} is still there");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_finished_job_keeps_its_pods_unless_all_are_to_be_cleaned() {
    let Some(stage) = crate::set("cleaning").await else { return };
    let _operator = stage.operator().await;
    stage.post("keeps", json!({})).await;
    stage.post("cleans", json!({"runPolicy": {"cleanPodPolicy": "All"}})).await;
    for job in ["keeps", "cleans"] {
        let pod = stage.worker(job, 1).await;
        stage.run(&pod).await;
        stage.end(&pod, 0, "").await;
        stage.when_true(job, ConditionType::Complete).await;
    }
    stage.when_pods("cleans", <[_]>::is_empty).await;
    assert_eq!(stage.when_pods("keeps", |_| true).await.len(), 1);
}

#[tokio::test]
async fn a_finished_job_is_deleted_in_time_unless_it_would_be_applied_anew() {
    let Some(stage) = crate::set("ttl").await else { return };
    let _operator = stage.operator().await;
    let policy = json!({"runPolicy": {"ttlSecondsAfterFinished": 1}});
    stage.post("goes", policy.clone()).await;
    let mut tracked = stage.manifest("stays", &policy);
    tracked.annotations_mut().insert("argocd.argoproj.io/tracking-id".into(), "app:job".into());
    stage.jobs().create(&PostParams::default(), &tracked).await.unwrap();
    for job in ["goes", "stays"] {
        let pod = stage.worker(job, 1).await;
        stage.run(&pod).await;
        stage.end(&pod, 0, "").await;
    }
    stage.when_gone("goes").await;
    stage.when_pods("stays", <[_]>::is_empty).await;
    stage.when_true("stays", ConditionType::Complete).await;
}

#[tokio::test]
async fn a_deleted_job_takes_everything_with_it_and_one_of_the_same_name_begins_anew() {
    let Some(stage) = crate::set("again").await else { return };
    let _operator = stage.operator().await;
    let first = stage.post("again", json!({})).await;
    stage.run(&stage.worker("again", 1).await).await;
    stage.when_true("again", ConditionType::PodsReady).await;
    stage.jobs().delete("again", &DeleteParams::background()).await.unwrap();
    stage.when_gone("again").await;
    let second = stage.post("again", json!({})).await;
    let owner = |pod: &k8s_openapi::api::core::v1::Pod| pod.owner_references()[0].uid.clone();
    let pods =
        stage.when_pods("again", |pods| pods.iter().any(|pod| owner(pod) == second.uid().unwrap())).await;
    assert_eq!(pods.len(), 1);
    assert_ne!(first.uid(), second.uid());
    assert_eq!(stage.when("again", |status| status.attempt.is_some()).await.attempt, Some(1));
}
