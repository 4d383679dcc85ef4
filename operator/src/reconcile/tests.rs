//! Proves that every refusal of the API server is in the status after one reconcile, and that the other
//! fields are kept.

mod children;
mod claims;
mod endpoints;
mod ends;
mod events;
mod last_report;
mod outdated;
mod specification;
mod upgrade;

use std::sync::{Mutex, PoisonError};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::events::Reporter;
use rlt_api::status::{Condition, ConditionStatus, ConditionType, Progress};
use rlt_objects::args::PullPolicy;
use rlt_objects::build::{PodSettings, Settings};
use rlt_objects::worker::{JobKey, Worker, WorkerPhase};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::Layer as _;

use super::*;
use crate::client::{ApiLayer, CallRate, Limiter, MAX_IN_FLIGHT};
use crate::decide::Report;
use crate::decide::fixtures;
use crate::discovery::Discovery;
use crate::index::{Child, ChildEntry};
use crate::metrics::Metrics;

/// The API server's answer to a call; `None` accepts the call.
type Rule = Box<dyn Fn(&Method, &str) -> Option<(u16, Value)> + Send + Sync>;

/// An API server that records requests, with a client like the operator's.
struct Server {
    client: Client,
    limiter: Limiter,
    calls: Arc<Mutex<Vec<(Method, String, Value)>>>,
}

fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

fn answer(rule: &Rule, method: &Method, path: &str, mut sent: Value) -> (u16, Value) {
    if let Some(answer) = rule(method, path) {
        return answer;
    }
    if path == "/apis" {
        let jobs = json!({"name": "rltraining.dev", "versions": []});
        return (200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [jobs]}));
    }
    if method == Method::GET {
        return refusal(404, "NotFound", &format!("{path} is not there"));
    }
    if sent["metadata"].is_object() {
        sent["metadata"]["uid"] = json!("made");
        sent["metadata"]["resourceVersion"] = json!("7");
    }
    (200, sent)
}

impl Server {
    fn new(rule: Rule) -> Self {
        Self::with_limiter(rule, Limiter::new(CallRate::default(), MAX_IN_FLIGHT))
    }

    fn with_limiter(rule: Rule, limiter: Limiter) -> Self {
        let calls: Arc<Mutex<Vec<(Method, String, Value)>>> = Arc::default();
        let (noted, rule) = (calls.clone(), Arc::new(rule));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (noted, rule) = (noted.clone(), rule.clone());
            async move {
                let (head, body) = request.into_parts();
                let bytes = body.collect_bytes().await?;
                let sent: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let path = head.uri.path().to_owned();
                noted.lock().unwrap().push((head.method.clone(), path.clone(), sent.clone()));
                let (code, answer) = answer(&rule, &head.method, &path, sent);
                let body = Body::from(serde_json::to_vec(&answer)?);
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        let service = ApiLayer::new(limiter.clone(), Metrics::default()).layer(service);
        Self { client: Client::new(service, "default"), limiter, calls }
    }

    /// Returns the status that was written last.
    fn status(&self) -> Option<RLTrainingJobStatus> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let written = calls.iter().rev().find(|(method, path, _)| {
            *method == Method::PATCH && path.ends_with("rltrainingjobs/quickstart/status")
        })?;
        Some(serde_json::from_value(written.2["status"].clone()).unwrap())
    }

    fn made(&self, resource: &str) -> bool {
        let calls = self.calls.lock().unwrap();
        calls.iter().any(|(method, path, _)| *method == Method::POST && path.ends_with(resource))
    }
}

#[derive(Debug)]
struct OneReport;

impl observe::Reports for OneReport {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        let progress = Progress { step: 3, num_steps: 60, ..Progress::default() };
        Some(Report { attempt: 1, progress: Some(progress), checkpoints: None, ..Report::default() })
    }
}

fn context(server: &Server) -> Context {
    let client = server.client.clone();
    let (leader, leadership) = watch::channel(true);
    std::mem::forget(leader);
    Context {
        reporter: Reporter { controller: labels::OPERATOR.into(), instance: None },
        events: Arc::default(),
        client,
        limiter: server.limiter.clone(),
        settings: Settings {
            trainer_image: "rlt.local/rlt-trainer:test".into(),
            trainer_cuda_image: None,
            pull_policy: PullPolicy::Never,
            channel: None,
            traces: Vec::new(),
            pods: PodSettings::default(),
        },
        index: Arc::default(),
        discovery: Arc::new(Discovery::new(Duration::from_secs(1))),
        prepared: Arc::default(),
        written: Arc::default(),
        reports: Arc::new(OneReport),
        leadership,
        failures: Arc::default(),
        metrics: Default::default(),
        synced: watch::Sender::new(true),
    }
}

/// Returns a job of two workers with a claim.
fn job(status: &Value) -> Job {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["workers"] = json!({"count": 2, "device": "Cpu", "storage": {"size": "1Gi"}});
    manifest["metadata"] = json!({
        "name": "quickstart", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "5",
    });
    manifest["status"] = status.clone();
    serde_json::from_value(manifest).unwrap()
}

/// Returns a new job with these fields in `spec.workers`.
fn with_workers(workers: Value) -> Job {
    let mut job = job(&json!({"observedGeneration": -1}));
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    let fields = spec["workers"].as_object_mut().unwrap();
    fields.extend(workers.as_object().unwrap().clone());
    job.spec = spec.to_string();
    job
}

fn key() -> JobKey {
    JobKey { uid: "u".into(), namespace: "default".into(), name: "quickstart".into() }
}

fn condition(status: &RLTrainingJobStatus, type_: ConditionType) -> &Condition {
    status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
}

/// Runs one reconcile of a job against an API server with this rule.
async fn once(rule: Rule, prepare: impl Fn(&Context)) -> (Server, Result<Action, ApplyError>) {
    let server = Server::new(rule);
    let context = context(&server);
    prepare(&context);
    let is_new = context.index.workers(&key()).is_empty();
    let status = if is_new { json!({"observedGeneration": -1}) } else { begun() };
    let context = Arc::new(context);
    let done = reconcile(Arc::new(job(&status)), context.clone()).await;
    context.events.finish().await;
    (server, done)
}

/// Returns the status of a job whose first attempt has begun.
fn begun() -> Value {
    json!({"attempt": 1, "activeSince": "2026-01-01T00:00:00Z", "attemptStartTime": "2026-01-01T00:00:00Z"})
}

/// Enters two running workers into the cache.
fn runs(context: &Context) {
    for idx in 0..2 {
        let worker = Worker { phase: WorkerPhase::Running, is_ready: true, ..fixtures::worker(idx, 1) };
        context.index.enter(&key(), worker);
    }
}

/// Enters two running workers with addresses into the cache.
fn reachable(context: &Context) {
    for idx in 0..2 {
        let runs = Worker { phase: WorkerPhase::Running, is_ready: true, ..fixtures::worker(idx, 1) };
        context.index.enter(&key(), Worker { address: Some("10.0.0.7".into()), ..runs });
    }
}

fn post(resource: &'static str, code: u16, reason: &'static str, message: &'static str) -> Rule {
    Box::new(move |method, path| {
        (*method == Method::POST && path.ends_with(resource)).then(|| refusal(code, reason, message))
    })
}

#[tokio::test]
async fn a_call_that_the_operator_may_not_make_is_a_condition_and_pods_start_all_the_same() {
    let rule: Rule = Box::new(|method, path| match (method, path) {
        (&Method::POST, path) if path.ends_with("/persistentvolumeclaims") => {
            Some(refusal(409, "AlreadyExists", "it is there"))
        }
        (&Method::GET, path) if path.contains("/persistentvolumeclaims/") => {
            Some(refusal(403, "Forbidden", "may not get persistentvolumeclaims"))
        }
        _ => None,
    });
    let (server, _) = once(rule, |_| ()).await;
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "ObjectRefused"));
    assert!(stalled.message.contains("may not get persistentvolumeclaims"), "{stalled:?}");
    assert_eq!(condition(&status, ConditionType::Reconciling).status, ConditionStatus::True);
    assert!(server.made("/configmaps") && server.made("/pods"), "what does not depend on it is made");
    assert_eq!(status.progress.unwrap().step, 3, "what was reported is written all the same");
}

#[tokio::test]
async fn a_refused_change_of_a_running_job_is_in_its_status_and_workers_are_still_counted() {
    let rule: Rule = Box::new(|method, path| {
        let is_change = *method == Method::PATCH && path.ends_with("/configmaps/quickstart-manifest");
        is_change.then(|| refusal(422, "Invalid", "data: field is immutable when `immutable` is set"))
    });
    let (server, _) = once(rule, |context| {
        runs(context);
        context
            .index
            .enter(&key(), ChildEntry::written(Child::ConfigMap.into(), Some("another digest".into())));
    })
    .await;
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "ObjectRefused"));
    assert!(stalled.message.contains("field is immutable"), "{stalled:?}");
    assert_eq!(condition(&status, ConditionType::PodsReady).status, ConditionStatus::True);
    assert_eq!(condition(&status, ConditionType::Progressing).status, ConditionStatus::True);
    assert_eq!(status.progress.unwrap().step, 3);
}

#[tokio::test]
async fn an_object_of_another_owner_is_reported_with_that_owner() {
    let rule: Rule = Box::new(|method, path| {
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "w"});
        let found = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": "quickstart-trainer", "namespace": "default", "ownerReferences": [owner]},
        });
        match *method {
            Method::POST if path.ends_with("/services") => Some(refusal(409, "AlreadyExists", "it is there")),
            Method::GET if path.contains("/services/") => Some((200, found)),
            _ => None,
        }
    });
    let (server, _) = once(rule, |_| ()).await;
    let status = server.status().expect("a status is written");
    let stalled = condition(&status, ConditionType::Stalled);
    assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "NameConflict"));
    assert!(stalled.message.contains("Deployment `web`"), "{stalled:?}");
}

#[tokio::test]
async fn every_kind_of_object_that_is_refused_is_a_condition_within_one_reconcile() {
    let resources = ["/serviceaccounts", "/configmaps", "/services", "/persistentvolumeclaims", "/pods"];
    for resource in resources {
        let (server, _) = once(post(resource, 403, "Forbidden", "no"), |_| ()).await;
        let status = server.status().unwrap_or_else(|| panic!("{resource}: no status is written"));
        let stalled = condition(&status, ConditionType::Stalled);
        let reason = if resource == "/pods" { "WorkersRefused" } else { "ObjectRefused" };
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, reason), "{resource}");
    }
}

#[tokio::test]
async fn a_transient_fault_is_a_condition_only_while_it_persists() {
    let is_broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let broken = is_broken.clone();
    let rule: Rule = Box::new(move |method, path| {
        let fails = *method == Method::POST && path.ends_with("/services");
        let fails = fails && broken.load(std::sync::atomic::Ordering::SeqCst);
        fails.then(|| refusal(500, "InternalError", "a webhook does not answer"))
    });
    let server = Server::new(rule);
    let (context, job) = (Arc::new(context(&server)), Arc::new(job(&begun())));
    runs(&context);
    let mut reasons = Vec::new();
    for round in 0..6 {
        let error = reconcile(job.clone(), context.clone()).await.unwrap_err();
        context.written.drop_observed(&job);
        let _ = retry(job.clone(), &error, context.clone());
        let status = server.status().expect("the status is written all the same");
        let reconciling = condition(&status, ConditionType::Reconciling);
        reasons.push((round, reconciling.reason.clone()));
        assert_eq!(condition(&status, ConditionType::Stalled).status, ConditionStatus::False);
    }
    assert_eq!(reasons[0].1, "Settled", "{reasons:?}");
    assert_eq!(reasons[5].1, "ApplyFailed", "{reasons:?}");
    is_broken.store(false, std::sync::atomic::Ordering::SeqCst);
    reconcile(job.clone(), context.clone()).await.unwrap();
    assert_eq!(condition(&server.status().unwrap(), ConditionType::Reconciling).reason, "Settled");
}

/// The deletion of the job arrives while its reconcile waits for an answer.
#[tokio::test]
async fn state_that_a_reconcile_leaves_of_a_job_that_was_deleted_meanwhile_is_swept() {
    let server = Server::new(post("/services", 500, "InternalError", "a webhook does not answer"));
    let (context, job) = (Arc::new(context(&server)), Arc::new(job(&begun())));
    runs(&context);
    context.forget(&job);
    let error = reconcile(job.clone(), context.clone()).await.unwrap_err();
    let _ = retry(job.clone(), &error, context.clone());
    let states = || {
        let Context { prepared, written, failures, .. } = &*context;
        [format!("{prepared:?}"), format!("{written:?}"), format!("{failures:?}")]
    };
    let are_all = |what: &str| states().iter().all(|state| state.contains(what));
    assert!(are_all("data: {\"u\": "), "{:?}", states());
    context.retain(&[job]);
    assert!(are_all("data: {\"u\": "), "a job that is there keeps its state");
    context.retain(&[]);
    assert!(are_all("data: {}"), "{:?}", states());
}
