//! A leader's calls end with its term, and a candidate that cannot become the leader calls less and less.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

/// The API server's answer to a write; `None` for no answer.
type Rule = fn(num_writes: usize) -> Option<u16>;

/// An API server without a Lease at first, and how many writes it was sent.
fn server(rule: Rule) -> (Client, Arc<AtomicUsize>) {
    let num_writes = Arc::new(AtomicUsize::new(0));
    let counter = num_writes.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let counter = counter.clone();
        async move {
            let (head, body) = request.into_parts();
            let is_watch = head.uri.query().is_some_and(|query| query.contains("watch=true"));
            let sent: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
            let (code, answer) = match head.method {
                Method::GET if is_watch => std::future::pending().await,
                Method::GET if head.uri.path().ends_with("/leases") => {
                    (200, json!({"kind": "LeaseList", "metadata": {"resourceVersion": "1"}, "items": []}))
                }
                Method::GET => (404, status(404)),
                _ => match rule(counter.fetch_add(1, Ordering::SeqCst) + 1) {
                    Some(code @ ..300) => (code, sent),
                    Some(code) => (code, status(code)),
                    None => std::future::pending().await,
                },
            };
            let body = Body::from(serde_json::to_vec(&answer)?);
            Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    (Client::new(service, "rl"), num_writes)
}

fn status(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "Forbidden" };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": ""})
}

fn candidate() -> Candidate {
    Candidate {
        namespace: "rl".into(),
        name: "rl-operator".into(),
        identity: "one".into(),
        timing: Timing::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_hanging_renewals_makes_no_call_after_its_term() {
    // It is made, and renewed once.
    let (client, _) = server(|num_writes| (num_writes <= 2).then_some(200));
    let election = Election::start(client, candidate(), Term::default());
    let mut leadership = election.leadership();
    leadership.wait_for(|leads| *leads).await.unwrap();
    let started = Instant::now();
    leadership.wait_for(|leads| !*leads).await.unwrap();
    let Timing { renew_every, renew_within, .. } = Timing::default();
    let led = started.elapsed();
    let slack = Duration::from_millis(100);
    assert!(led <= renew_every + renew_within + slack, "a term of {renew_within:?} ended after {led:?}");
    assert!(led >= renew_every + renew_within - slack, "{led:?}");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_refused_tries_again_less_and_less_often() {
    // Beyond a hundred no call is answered, so that the test always ends.
    let (client, num_writes) = server(|num_writes| (num_writes <= 100).then_some(403));
    let _election = Election::start(client, candidate(), Term::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    // After 0, 1, 3, 7, 15, 29, 43 and 57 s.
    let num_writes = num_writes.load(Ordering::SeqCst);
    assert!((6..=9).contains(&num_writes), "{num_writes} tries in a minute");
}
