//! Elections on a paused clock: renewals, handover, the death of a leader, and calls that fail.

mod api_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use rlt_cluster::{Fault, Faults};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use api_server::ApiServer;

/// Tolerance for timers, which have a resolution of a millisecond.
const SLACK: Duration = Duration::from_millis(100);

/// The API server's answer to a write; `None` for no answer.
type Rule = fn(num_writes: usize) -> Option<u16>;

/// Returns a client of an API server without a Lease, and the number of writes that were sent to it.
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
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "Forbidden",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": ""})
}

fn candidate(identity: &str) -> Candidate {
    Candidate {
        namespace: "rl".into(),
        name: "rl-operator".into(),
        identity: identity.into(),
        service: None,
        timing: Timing::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_hanging_renewals_makes_no_call_after_its_term() {
    // The Lease is created, and renewed once.
    let (client, _) = server(|num_writes| (num_writes <= 2).then_some(200));
    let election = Election::start(client, candidate("one"), Term::default());
    let mut leadership = election.leadership();
    leadership.wait_for(|leads| *leads).await.unwrap();
    let started = Instant::now();
    leadership.wait_for(|leads| !*leads).await.unwrap();
    let Timing { renew_every, renew_within, .. } = Timing::default();
    let led = started.elapsed();
    assert!(led <= renew_every + renew_within + SLACK, "a term of {renew_within:?} ended after {led:?}");
    assert!(led >= renew_every + renew_within - SLACK, "{led:?}");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_refused_tries_again_less_and_less_often() {
    // After a hundred writes no call is answered, so that the test always ends.
    let (client, num_writes) = server(|num_writes| (num_writes <= 100).then_some(403));
    let _election = Election::start(client, candidate("one"), Term::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    // After 0, 1, 3, 7, 15, 29, 43 and 57 s.
    let num_writes = num_writes.load(Ordering::SeqCst);
    assert!((6..=9).contains(&num_writes), "{num_writes} tries in a minute");
}

/// Starts an election with this identity, whose calls pass through `faults`.
fn election(server: &ApiServer, identity: &str, faults: &Faults) -> Election {
    Election::start(server.client(faults).0, candidate(identity), Term::default())
}

async fn leads(election: &Election) {
    election.leadership().wait_for(|leads| *leads).await.unwrap();
}

fn is_leading(election: &Election) -> bool {
    *election.leadership().borrow()
}

#[tokio::test(start_paused = true)]
async fn a_standby_leads_at_once_when_the_leader_hands_over() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let first = election(&server, "first", &faults);
    leads(&first).await;
    let second = election(&server, "second", &faults);
    // Long enough for the Lease to expire if it were not renewed.
    tokio::time::sleep(Timing::default().valid_for * 3).await;
    assert!(is_leading(&first) && !is_leading(&second));
    let started = Instant::now();
    first.release().await;
    leads(&second).await;
    assert!(started.elapsed() <= SLACK, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_standby_leads_after_the_death_of_the_leader_once_its_term_is_over() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let first = election(&server, "first", &faults);
    leads(&first).await;
    let started = Instant::now();
    let second = election(&server, "second", &faults);
    let Timing { valid_for, renew_within, renew_every, .. } = Timing::default();
    // Half a period after the second renewal.
    tokio::time::sleep(renew_every * 5 / 2).await;
    drop(first);
    leads(&second).await;
    let last_renewal = renew_every * 2;
    let taken_over = started.elapsed();
    assert!(taken_over > last_renewal + renew_within, "in the term of the first leader: {taken_over:?}");
    assert!(taken_over <= last_renewal + valid_for + SLACK, "{taken_over:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_once_a_period_and_a_standby_calls_nothing() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let (leader, num_calls) = server.client(&faults);
    let leader = Election::start(leader, candidate("leader"), Term::default());
    leads(&leader).await;
    let (standby, num_standby_calls) = server.client(&faults);
    let standby = Election::start(standby, candidate("standby"), Term::default());
    let Timing { renew_every, .. } = Timing::default();
    tokio::time::sleep(renew_every / 2).await;
    let counts = || (num_calls.load(Ordering::SeqCst), num_standby_calls.load(Ordering::SeqCst));
    let before = counts();
    assert_eq!(before.1, 1, "a standby lists the Lease once");
    tokio::time::sleep(renew_every * 60).await;
    assert_eq!(counts(), (before.0 + 60, before.1));
    assert!(is_leading(&leader) && !is_leading(&standby));
}

#[tokio::test(start_paused = true)]
async fn a_leader_outlives_refused_lost_and_hanging_renewals_and_doubts_about_them() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let leader = election(&server, "leader", &faults);
    leads(&leader).await;
    let standby = election(&server, "standby", &Faults::default());
    let Timing { valid_for, renew_every, .. } = Timing::default();
    let refusals = [429, 500, 409].map(Fault::Refuse);
    // A renewal with a lost answer is stored; the leader has an old version then, and its next renewal
    // conflicts.
    for fault in refusals.into_iter().chain([Fault::LoseRequest, Fault::LoseAnswer, Fault::Hang]) {
        faults.inject("PUT", "/leases/", 1, fault);
        tokio::time::sleep(renew_every + SLACK).await;
        assert_eq!(faults.num_left(), 0, "{fault:?} was never met");
        tokio::time::sleep(valid_for * 2).await;
        assert!(is_leading(&leader), "{fault:?} ended the leadership");
        assert!(!is_leading(&standby), "{fault:?} made two leaders");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_a_standby_leads() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let mut leader = election(&server, "leader", &faults);
    leads(&leader).await;
    let started = Instant::now();
    let standby = election(&server, "standby", &Faults::default());
    faults.inject("PUT", "/leases/", usize::MAX >> 1, Fault::Hang);
    let leadership = leader.leadership();
    let error = leader.lost().await;
    assert!(matches!(error, LeaseError::NotRenewed { .. }), "{error}");
    assert!(!*leadership.borrow() && !is_leading(&standby));
    let Timing { valid_for, renew_within, .. } = Timing::default();
    let stopped = started.elapsed();
    leads(&standby).await;
    let taken_over = started.elapsed();
    assert!(
        stopped <= renew_within + SLACK && taken_over >= valid_for - SLACK,
        "{stopped:?}, {taken_over:?}"
    );
    assert!(taken_over <= valid_for + SLACK, "{taken_over:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standby_respects_the_holder_of_a_deleted_lease_until_its_term_is_over() {
    let (server, faults) = (ApiServer::new(), Faults::default());
    let mut leader = election(&server, "leader", &faults);
    leads(&leader).await;
    let started = Instant::now();
    let standby = election(&server, "standby", &faults);
    let Timing { valid_for, renew_every, .. } = Timing::default();
    tokio::time::sleep(renew_every / 2).await;
    server.delete();
    let leadership = leader.leadership();
    let error = leader.lost().await;
    assert!(matches!(error, LeaseError::TakenOver { .. }), "{error}");
    assert!(started.elapsed() <= renew_every + SLACK, "it ends at its next renewal");
    assert!(!*leadership.borrow() && !is_leading(&standby));
    leads(&standby).await;
    let taken_over = started.elapsed();
    assert!(taken_over >= valid_for - SLACK && taken_over <= valid_for + SLACK, "{taken_over:?}");
}
