//! Proves which objects of a job are made before its pods, and how a claim that exists is changed.

use rlt_objects::build;
use rlt_objects::prepare::Prepared;

use super::*;

/// The job with these fields of its workers.
fn with_workers(workers: Value) -> Job {
    let mut job = job(&json!({"observedGeneration": -1}));
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    let fields = spec["workers"].as_object_mut().unwrap();
    fields.extend(workers.as_object().unwrap().clone());
    job.spec = spec.to_string();
    job
}

/// The claim of a job as the operator would make it.
fn claim_of(job: &Job, context: &Context) -> k8s_openapi::api::core::v1::PersistentVolumeClaim {
    let prepared = Prepared::new(job).unwrap();
    let input = BuildInput { job, prepared: &prepared, settings: &context.settings };
    build::storage_claim(&input).unwrap()
}

/// One reconcile of a job whose claim exists as an earlier specification wanted it.
async fn with_claim(before: &Value, status: &Value, now: Value) -> Server {
    let server = Server::new(Box::new(|_, _| None));
    let found = serde_json::to_value(claim_of(&with_workers(before.clone()), &context(&server))).unwrap();
    let digest = found["metadata"]["annotations"][labels::CONTENT_DIGEST].as_str().unwrap().to_owned();
    let server = Server::new(Box::new(move |method, path| {
        let is_read = *method == Method::GET && path.ends_with("/persistentvolumeclaims/quickstart-storage");
        is_read.then(|| (200, found.clone()))
    }));
    let context = context(&server);
    context.index.enter(&key(), ChildEntry { id: Child::Claim.into(), digest: Some(digest) });
    let mut job = with_workers(now);
    job.status = Ok(serde_json::from_value(status.clone()).unwrap());
    let _ = reconcile(Arc::new(job), context.into()).await;
    server
}

/// The patches of the claim.
fn claim_patches(server: &Server) -> Vec<Value> {
    let calls = server.calls.lock().unwrap();
    let patches = calls
        .iter()
        .filter(|(method, path, _)| *method == Method::PATCH && path.contains("/persistentvolumeclaims/"));
    patches.map(|(_, _, sent)| sent.clone()).collect()
}

#[tokio::test]
async fn no_pod_of_an_isolated_job_is_made_without_its_policy() {
    for (network, starts) in [("Isolated", false), ("Guarded", true)] {
        let server = Server::new(post("/networkpolicies", 403, "Forbidden", "no"));
        let job = with_workers(json!({"network": network}));
        let _ = reconcile(Arc::new(job), context(&server).into()).await;
        assert_eq!(server.made("/pods"), starts, "{network}");
        let status = server.status().expect("a status is written");
        let stalled = condition(&status, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "ObjectRefused"), "{network}");
    }
}

#[tokio::test]
async fn the_policy_of_an_isolated_job_is_made_once_and_before_its_first_pod() {
    let server = Server::new(Box::new(|_, _| None));
    let job = with_workers(json!({"network": "Isolated"}));
    reconcile(Arc::new(job), context(&server).into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let made: Vec<_> = calls.iter().filter(|(method, ..)| *method == Method::POST).collect();
    let places = |resource: &str| -> Vec<usize> {
        let all = made.iter().enumerate().filter(|(_, (_, path, _))| path.ends_with(resource));
        all.map(|(place, _)| place).collect()
    };
    let (policies, pods) = (places("/networkpolicies"), places("/pods"));
    assert_eq!((policies.len(), pods.len()), (1, 2));
    assert!(policies[0] < pods[0], "{made:?}");
}

#[tokio::test]
async fn a_claim_that_is_to_be_retained_is_released_at_once_also_while_the_job_is_suspended() {
    let storage = |retain: bool| json!({"count": 1, "storage": {"size": "1Gi", "retain": retain}});
    let suspended = json!({"attempt": 1, "conditions": []});
    for status in [suspended, json!({"attempt": 1, "completionTime": "2026-01-01T01:00:00Z"})] {
        let server = with_claim(&storage(false), &status, storage(true)).await;
        let [patch] = claim_patches(&server).try_into().unwrap();
        assert_eq!(patch["metadata"]["ownerReferences"], json!([]), "{status}");
        let server = with_claim(&storage(true), &status, storage(true)).await;
        assert!(claim_patches(&server).is_empty(), "nothing has changed");
    }
}

#[tokio::test]
async fn a_larger_claim_is_requested_and_what_a_claim_cannot_become_holds_the_job_with_the_reason() {
    let workers = |count: u32, size: &str| json!({"count": count, "storage": {"size": size}});
    let server = with_claim(&workers(1, "1Gi"), &begun(), workers(1, "2Gi")).await;
    let [patch] = claim_patches(&server).try_into().unwrap();
    assert_eq!(patch["spec"]["resources"]["requests"]["storage"], "2Gi");
    for (now, field) in [(workers(2, "1Gi"), "spec.workers.count"), (workers(1, "1Mi"), "storage.size")] {
        let server = with_claim(&workers(1, "1Gi"), &begun(), now).await;
        assert!(claim_patches(&server).is_empty() && !server.made("/pods"));
        let status = server.status().expect("a status is written");
        let stalled = condition(&status, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "ObjectRefused"));
        assert!(stalled.message.contains(field), "{stalled:?}");
    }
}
