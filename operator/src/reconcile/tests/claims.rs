//! Proves how an existing claim is changed, and what happens when the claim or its job is deleted.

use rlt_api::FailureCause;
use rlt_objects::build;
use rlt_objects::prepare::Prepared;

use super::*;

/// Returns the claim of a job as the operator would create it.
fn claim_of(job: &Job, context: &Context) -> k8s_openapi::api::core::v1::PersistentVolumeClaim {
    let prepared = Prepared::new(job).unwrap();
    let input = BuildInput { job, prepared: &prepared, settings: &context.settings };
    build::storage_claim(&input).unwrap()
}

/// Runs one reconcile of a job with the workers `now`, whose claim was created for the workers `before`.
async fn with_claim(before: &Value, status: &Value, now: Value) -> Server {
    let mut job = with_workers(now);
    job.status = Ok(serde_json::from_value(status.clone()).unwrap());
    over_claim(before, job, Box::new(|_, _| None)).await
}

/// Runs one reconcile of a job whose claim was created for the workers `before`, against an API server with
/// this rule.
async fn over_claim(before: &Value, job: Job, rule: Rule) -> Server {
    let server = Server::new(Box::new(|_, _| None));
    let found = serde_json::to_value(claim_of(&with_workers(before.clone()), &context(&server))).unwrap();
    over_found(found, job, rule).await.0
}

/// Runs one reconcile of a job with the existing claim `found`. Returns also whether the cached claim keeps
/// its digest, so that it is to be changed later.
async fn over_found(found: Value, job: Job, rule: Rule) -> (Server, bool) {
    let digest = found["metadata"]["annotations"][labels::CONTENT_DIGEST].as_str().unwrap().to_owned();
    let server = Server::new(Box::new(move |method, path| {
        let is_read = *method == Method::GET && path.ends_with("/persistentvolumeclaims/quickstart-storage");
        rule(method, path).or_else(|| is_read.then(|| (200, found.clone())))
    }));
    let context = context(&server);
    let (index, events) = (context.index.clone(), context.events.clone());
    index.enter(&key(), ChildEntry::written(Child::Claim.into(), Some(digest.clone())));
    let _ = reconcile(Arc::new(job), context.into()).await;
    events.finish().await;
    (server, index.children(&key()).get(&Child::Claim.into()) == Some(&Some(digest)))
}

/// Returns the patches of the claim.
fn claim_patches(server: &Server) -> Vec<Value> {
    let calls = server.calls.lock().unwrap();
    let patches = calls
        .iter()
        .filter(|(method, path, _)| *method == Method::PATCH && path.contains("/persistentvolumeclaims/"));
    patches.map(|(_, _, sent)| sent.clone()).collect()
}

/// Returns a job with these workers that has ended, and whose time to live is over.
fn expired(workers: Value) -> Job {
    let mut job = with_workers(workers);
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["runPolicy"]["ttlSecondsAfterFinished"] = json!(60);
    job.spec = spec.to_string();
    let ended = json!({"attempt": 1, "completionTime": "2026-01-01T01:00:00Z"});
    job.status = Ok(serde_json::from_value(ended).unwrap());
    job
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
async fn a_claim_that_is_to_be_retained_is_released_though_another_change_of_it_is_refused() {
    let storage = |size: &str, retain: bool| json!({"count": 1, "storage": {"size": size, "retain": retain}});
    // The operator refuses to shrink the claim, and the API server refuses to let it grow.
    for (size, num_patches) in [("1Mi", 1), ("2Gi", 2)] {
        let num_seen = std::sync::atomic::AtomicUsize::new(0);
        let rule: Rule = Box::new(move |method, path| {
            let is_change = *method == Method::PATCH && path.contains("/persistentvolumeclaims/");
            let is_first = is_change && num_seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            let is_refused = is_first && num_patches == 2;
            is_refused.then(|| refusal(403, "Forbidden", "the storageclass must support resize"))
        });
        let mut job = with_workers(storage(size, true));
        job.status = Ok(serde_json::from_value(begun()).unwrap());
        let server = over_claim(&storage("1Gi", false), job, rule).await;
        let patches = claim_patches(&server);
        assert_eq!(patches.len(), num_patches, "{patches:?}");
        let last = &patches[num_patches - 1];
        assert_eq!((&last["metadata"]["ownerReferences"], &last["spec"]), (&json!([]), &Value::Null));
        let status = server.status().expect("a status is written");
        assert_eq!(condition(&status, ConditionType::Stalled).reason, "ObjectRefused");
    }
}

/// No operator ran while the job was edited and its time to live ended.
#[tokio::test]
async fn a_claim_that_is_to_be_retained_is_released_before_its_job_is_deleted() {
    let storage = |retain: bool| json!({"count": 1, "storage": {"size": "1Gi", "retain": retain}});
    for retain in [true, false] {
        let server = over_claim(&storage(!retain), expired(storage(retain)), Box::new(|_, _| None)).await;
        let calls = server.calls.lock().unwrap();
        let place = |wanted: Method, part: &str| {
            calls.iter().position(|(method, path, _)| *method == wanted && path.contains(part)).unwrap()
        };
        let changed = place(Method::PATCH, "/persistentvolumeclaims/quickstart-storage");
        assert!(changed < place(Method::DELETE, "/rltrainingjobs/quickstart"), "{calls:?}");
        let owners = calls[changed].2["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.is_empty(), retain);
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

/// The API server lets only claims with a volume grow, and some claims get a volume only when a pod mounts
/// them.
#[tokio::test]
async fn a_claim_without_a_volume_holds_no_pod_back_and_grows_once_it_has_one() {
    let workers = |size: &str, retain: bool| json!({"count": 1, "storage": {"size": size, "retain": retain}});
    let server = Server::new(Box::new(|_, _| None));
    let small = claim_of(&with_workers(workers("1Gi", false)), &context(&server));
    let mut found = serde_json::to_value(small).unwrap();
    found["status"] = json!({"phase": "Pending"});
    for (retain, num_patches) in [(false, 0), (true, 1)] {
        let job = with_workers(workers("2Gi", retain));
        let (server, is_to_be_changed) = over_found(found.clone(), job, Box::new(|_, _| None)).await;
        let patches = claim_patches(&server);
        assert!(server.made("/pods") && is_to_be_changed);
        assert_eq!(patches.len(), num_patches, "{patches:?}");
        assert!(patches.iter().all(|patch| patch["spec"].is_null()), "{patches:?}");
    }
    found["status"]["phase"] = json!("Bound");
    let job = with_workers(workers("2Gi", false));
    let (server, is_to_be_changed) = over_found(found, job, Box::new(|_, _| None)).await;
    let [patch] = claim_patches(&server).try_into().unwrap();
    assert_eq!(patch["spec"]["resources"]["requests"]["storage"], "2Gi");
    assert!(!is_to_be_changed);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_may_not_be_read_keeps_its_job_only_if_it_is_to_be_released_first() {
    let storage = |size: &str, retain: bool| json!({"count": 1, "storage": {"size": size, "retain": retain}});
    let over_refused = async |before: Value, now: Value| {
        let rule: Rule = Box::new(|_, path| {
            let is_claim = path.contains("/persistentvolumeclaims/");
            is_claim.then(|| refusal(403, "Forbidden", "may not get persistentvolumeclaims"))
        });
        over_claim(&before, expired(now), rule).await
    };
    let is_deleted = |server: &Server| {
        let calls = server.calls.lock().unwrap();
        calls.iter().any(|(method, ..)| *method == Method::DELETE)
    };
    for (before, now) in [
        (storage("1Gi", true), storage("1Gi", true)),
        (storage("1Gi", true), storage("1Gi", false)),
        (storage("1Gi", false), storage("2Gi", false)),
    ] {
        let server = over_refused(before, now.clone()).await;
        assert!(is_deleted(&server), "{now}");
    }
    let server = over_refused(storage("1Gi", false), storage("1Gi", true)).await;
    assert!(!is_deleted(&server), "the claim would be deleted with its job");
    let status = server.status().expect("a status is written");
    let reconciling = condition(&status, ConditionType::Reconciling);
    assert_eq!((reconciling.status, &*reconciling.reason), (ConditionStatus::True, "ObjectRefused"));
    let message = "before the job is deleted, its claim `quickstart-storage`: may not get";
    assert!(reconciling.message.contains(message), "{reconciling:?}");
    assert_eq!(events::reasons(&server).await, ["ObjectRefused"]);
}

/// The kubelet starts no pod on a claim that is being deleted, and a pod with a node keeps the claim.
#[tokio::test]
async fn a_claim_that_is_deleted_before_its_pods_start_is_made_again_after_they_are_gone() {
    let server = Server::new(Box::new(|method, _| {
        (*method == Method::DELETE).then(|| (200, json!({"kind": "Status", "metadata": {}})))
    }));
    let (context, job) = (Arc::new(context(&server)), Arc::new(job(&begun())));
    let present = ChildEntry::written(Child::Claim.into(), Some("of another size".to_owned()));
    let deleted = ChildEntry { is_deleting: true, ..present };
    context.index.enter(&key(), deleted.clone());
    let pods = [0, 1].map(|idx| Worker { node: Some("node".into()), ..fixtures::worker(idx, 1) });
    pods.iter().for_each(|pod| context.index.enter(&key(), pod.clone()));
    for _ in 0..2 {
        reconcile(job.clone(), context.clone()).await.unwrap();
    }
    let num_calls = |wanted: Method, part: &str| {
        let calls = server.calls.lock().unwrap();
        calls.iter().filter(|(method, path, _)| *method == wanted && path.contains(part)).count()
    };
    assert_eq!(num_calls(Method::DELETE, "/pods/"), 2);
    assert!(!server.made("/pods") && !server.made("/persistentvolumeclaims"));
    assert_eq!(num_calls(Method::GET, "/persistentvolumeclaims/"), 0, "it is not to be changed any more");
    let status = server.status().expect("a status is written");
    assert_eq!(status.attempt, Some(2));
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
    let reconciling = condition(&status, ConditionType::Reconciling);
    assert_eq!((reconciling.status, &*reconciling.reason), (ConditionStatus::True, "ClaimTerminating"));
    assert!(reconciling.message.contains("`quickstart-storage`"), "{reconciling:?}");

    pods.iter().for_each(|pod| context.index.remove(&key(), pod));
    context.index.remove(&key(), &deleted);
    reconcile(job, context).await.unwrap();
    assert!(server.made("/pods") && server.made("/persistentvolumeclaims"));
}
