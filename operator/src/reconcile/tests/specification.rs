//! Proves that a job that has begun continues under the specification that it began with after a restart of
//! the operator with settings that refuse it.

use rlt_api::status::Phase;
use rlt_objects::build::{MANIFEST_KEY, config_map_name};
use rlt_objects::prepare::Prepared;
use rlt_objects::queue::Workload;

use super::*;

const ENDED: &str = "2026-01-01T01:00:00Z";

/// Returns a job with this status that requests a privilege which the settings of these tests do not allow.
fn not_allowed(suspend: bool, status: &Value) -> Job {
    let mut job = job(status);
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["workers"]["podTemplate"] = json!({"spec": {"containers": [], "hostNetwork": true}});
    spec["runPolicy"] = json!({"suspend": suspend});
    job.spec = spec.to_string();
    job
}

/// Returns the status of a job after its first attempt began, and its manifest at that time.
fn began(more: Value) -> (Value, String) {
    let began = Prepared::new(&not_allowed(false, &json!({}))).unwrap();
    let mut status = begun();
    status["accepted"] = serde_json::to_value(&began.accepted).unwrap();
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    (status, began.job.to_yaml().unwrap())
}

/// Returns the rule of an API server that answers a read of the job's ConfigMap with this code and manifest.
fn with_config_map(code: u16, manifest: &str) -> Rule {
    let owner = json!({
        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "quickstart", "uid": "u",
        "controller": true,
    });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {MANIFEST_KEY: manifest},
        "metadata": {
            "name": config_map_name("quickstart"), "namespace": "default", "ownerReferences": [owner],
        },
    });
    Box::new(move |method, path| {
        let is_read = *method == Method::GET && path.ends_with("/configmaps/quickstart-manifest");
        match code {
            _ if *method == Method::DELETE => Some((200, json!({"kind": "Status", "metadata": {}}))),
            _ if !is_read => None,
            200 => Some((200, map.clone())),
            404 => Some(refusal(404, "NotFound", "no")),
            code => Some(refusal(code, "InternalError", "no")),
        }
    })
}

/// Runs one reconcile of a job with two running workers.
async fn reconciled(rule: Rule, job: Job) -> (Server, Result<Action, ApplyError>) {
    let server = Server::new(rule);
    let context = context(&server);
    runs(&context);
    let done = reconcile(Arc::new(job), context.into()).await;
    (server, done)
}

fn num_deleted_pods(server: &Server) -> usize {
    let calls = server.calls.lock().unwrap();
    calls.iter().filter(|(method, path, _)| *method == Method::DELETE && path.contains("/pods/")).count()
}

#[tokio::test]
async fn a_running_job_that_would_be_refused_continues_and_says_so() {
    let (status, manifest) = began(json!({}));
    let (server, done) = reconciled(with_config_map(200, &manifest), not_allowed(false, &status)).await;
    done.unwrap();
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::False, "PodNotAllowed"));
    assert!(stalled.message.contains("hostNetwork"), "{stalled:?}");
    assert!(stalled.message.contains("networkPolicy.admitNodes"), "its reports may be kept out: {stalled:?}");
    assert_eq!(condition(&status, ConditionType::PodsReady).status, ConditionStatus::True);
    assert_eq!((status.phase, num_deleted_pods(&server)), (Some(Phase::Running), 0));
    assert_eq!(status.progress.unwrap().step, 3, "reports are taken");
}

#[tokio::test]
async fn a_running_job_that_would_be_refused_can_be_suspended() {
    for (active_since, num_deleted) in [(json!("2026-01-01T00:00:00Z"), 0), (json!(null), 2)] {
        let (status, manifest) = began(json!({"activeSince": active_since}));
        let (server, done) = reconciled(with_config_map(200, &manifest), not_allowed(true, &status)).await;
        done.unwrap();
        assert_eq!(server.status().expect("a status is written").active_since, None);
        assert_eq!(num_deleted_pods(&server), num_deleted, "the status is written first");
    }
}

/// Returns a job of an earlier release, whose model has a mirror that this release refuses, and its manifest.
/// Its status has no record of its specification.
fn with_password(status: &Value) -> (Job, String) {
    let with_mirror = |address: &str| {
        let mut job = job(status);
        let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
        spec["model"] = json!({"hub": {"repo": "owner/name", "endpoint": address}});
        job.spec = spec.to_string();
        job
    };
    let plain = Prepared::new(&with_mirror("https://mirror")).unwrap().job.to_yaml().unwrap();
    let address = "https://user:word@mirror";
    (with_mirror(address), plain.replace("https://mirror", address))
}

#[tokio::test]
async fn a_running_job_of_an_earlier_release_continues_though_a_rule_of_this_one_refuses_it() {
    let (job, manifest) = with_password(&begun());
    let (server, done) = reconciled(with_config_map(200, &manifest), job).await;
    done.unwrap();
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::False, "InvalidSpec"));
    assert!(stalled.message.contains("spec.model.hub.endpoint"), "{stalled:?}");
    assert!(!stalled.message.contains("word@"), "{stalled:?}");
    assert_eq!((status.phase, num_deleted_pods(&server)), (Some(Phase::Running), 0));
    assert_eq!(status.progress.unwrap().step, 3, "reports are taken");
}

#[tokio::test]
async fn a_running_job_whose_manifest_is_another_one_keeps_its_conditions_and_is_stalled() {
    let (status, manifest) = began(json!({}));
    let forged = manifest.replace("numLayers: 2", "numLayers: 3");
    let mut edited = not_allowed(false, &status);
    let mut spec: Value = serde_json::from_str(&edited.spec).unwrap();
    spec["training"] = json!({"steps": 7});
    edited.spec = spec.to_string();
    for rule in [with_config_map(200, &forged), with_config_map(404, "")] {
        let job = edited.clone();
        let (server, done) = reconciled(rule, job).await;
        done.unwrap();
        let status = server.status().expect("a status is written");
        let stalled = condition(&status, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "PodNotAllowed"));
        assert_eq!(num_deleted_pods(&server), 0);
    }
}

#[tokio::test]
async fn a_running_job_that_would_be_refused_continues_without_its_config_map_and_gets_it_again() {
    let (status, _) = began(json!({}));
    let (server, done) = reconciled(with_config_map(404, ""), not_allowed(false, &status)).await;
    done.unwrap();
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::False, "PodNotAllowed"));
    assert_eq!((status.phase, num_deleted_pods(&server)), (Some(Phase::Running), 0));
    assert!(server.made("/configmaps"));
}

#[tokio::test]
async fn a_running_job_that_would_be_refused_continues_though_somebody_edited_its_config_map() {
    let (status, manifest) = began(json!({}));
    let edited = with_config_map(200, &manifest.replace("numLayers: 2", "numLayers: 3"));
    let (server, done) = reconciled(edited, not_allowed(false, &status)).await;
    done.unwrap();
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::False, "PodNotAllowed"));
    assert_eq!((status.phase, num_deleted_pods(&server)), (Some(Phase::Running), 0));
}

#[tokio::test]
async fn nothing_is_said_while_the_manifest_cannot_be_read() {
    let (status, _) = began(json!({}));
    let (server, done) = reconciled(with_config_map(500, ""), not_allowed(false, &status)).await;
    assert!(done.is_err(), "it is tried again");
    assert_eq!((server.status(), num_deleted_pods(&server)), (None, 0));
}

#[tokio::test]
async fn a_job_that_is_complete_stays_complete_with_its_manifest_or_without() {
    let complete = json!({
        "type": "Complete", "status": "True", "reason": "StepsFinished", "message": "all steps are done",
        "lastTransitionTime": ENDED,
    });
    let (status, manifest) =
        began(json!({"completionTime": ENDED, "conditions": [complete], "phase": "Succeeded"}));
    let (of_earlier_release, its_manifest) = with_password(&status);
    for (rule, job) in [
        (with_config_map(200, &manifest), not_allowed(false, &status)),
        (with_config_map(404, ""), not_allowed(false, &status)),
        (with_config_map(200, &its_manifest), of_earlier_release.clone()),
        (with_config_map(404, ""), of_earlier_release),
    ] {
        let (server, done) = reconciled(rule, job).await;
        done.unwrap();
        let status = server.status().expect("a status is written");
        assert_eq!(condition(&status, ConditionType::Complete).status, ConditionStatus::True);
        assert_eq!(condition(&status, ConditionType::Stalled).status, ConditionStatus::False);
        assert_eq!(status.phase, Some(Phase::Succeeded));
    }
}

#[tokio::test]
async fn a_refused_job_gives_back_the_place_that_its_queue_admits_it_to() {
    let admitted = Workload { has_quota: true, is_admitted: true, ..fixtures::waiting() };
    for (workload, num_deleted) in [(fixtures::waiting(), 0), (admitted, 1)] {
        let kueue = json!({"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"});
        let kueue = json!({"name": "kueue.x-k8s.io", "versions": [kueue]});
        let jobs = json!({"name": "rltraining.dev", "versions": []});
        let served = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [kueue, jobs]});
        let server = Server::new(Box::new(move |method, path| match path {
            "/apis" => Some((200, served.clone())),
            _ if *method == Method::DELETE => Some((200, json!({"kind": "Status", "metadata": {}}))),
            _ => None,
        }));
        let (context, mut job) = (context(&server), not_allowed(false, &json!({"observedGeneration": -1})));
        job.metadata.labels = Some([(queue::QUEUE_LABEL.to_owned(), "team".to_owned())].into());
        context.index.enter(&key(), workload);
        reconcile(Arc::new(job), context.into()).await.unwrap();
        let stalled = server.status().map(|status| condition(&status, ConditionType::Stalled).reason.clone());
        assert_eq!(stalled.as_deref(), Some("PodNotAllowed"));
        let calls = server.calls.lock().unwrap();
        let deleted = calls.iter().filter(|(method, ..)| *method == Method::DELETE).map(|(_, path, _)| path);
        assert_eq!(deleted.clone().count(), num_deleted);
        assert!(deleted.into_iter().all(|path| path.ends_with("/workloads/w")));
    }
}
