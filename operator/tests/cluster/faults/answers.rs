//! An API server that refuses calls or loses requests and answers: every kind of call fails once for a job.

use std::time::Duration;

use rlt_api::status::ConditionType;
use rlt_cluster::{Fault, Faults};
use serde_json::json;

use super::{Life, life};
use crate::crash_point::{CrashPoint, client, client_through};
use crate::history::History;
use crate::kubelet::Kubelet;
use crate::test_namespace::{Operator, is_true, until};

/// Every kind of call that changes something in a life.
const CALLS: [(&str, &str); 7] = [
    ("POST", "/serviceaccounts"),
    ("POST", "/configmaps"),
    ("POST", "/services"),
    ("POST", "/pods"),
    ("DELETE", "/pods/"),
    ("PATCH", "/status"),
    ("POST", "/events"),
];

async fn live_under(purpose: &str, fault: Fault) {
    let Some(test) = crate::set(purpose).await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let faults = Faults::default();
    for (method, path) in CALLS {
        faults.inject(method, path, 1, fault);
    }
    let operator = Operator::start(client(&test, &faults, &CrashPoint::never()).await, &test.namespace);
    life(&test, &history, "unlucky").await;
    assert_eq!(faults.num_left(), 0, "{fault:?} was not met by every kind of call");
    history.check(&test, false).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_job_completes_though_each_kind_of_call_is_refused_once() {
    let codes = [("conflict", 409), ("busy", 429), ("broken", 500), ("timeout", 504)];
    let lives = codes.map(|(purpose, code)| live_under(purpose, Fault::Refuse(code)));
    futures::future::join_all(lives).await;
}

#[tokio::test]
async fn a_job_completes_though_each_kind_of_call_or_answer_is_lost_once() {
    tokio::join!(
        live_under("lost-request", Fault::LoseRequest),
        live_under("lost-answer", Fault::LoseAnswer)
    );
}

#[tokio::test]
async fn a_job_completes_though_all_watches_break() {
    let Some(test) = crate::set("breaks").await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let faults = Faults::default();
    faults.inject("GET", "watch=true", 12, Fault::Break(Duration::from_millis(150)));
    let operator = Operator::start(client(&test, &faults, &CrashPoint::never()).await, &test.namespace);
    life(&test, &history, "blinking").await;
    until("every watch breaks", async || faults.num_left() == 0).await;
    history.check(&test, false).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_silent_watch_is_restarted_and_missed_changes_are_reconciled() {
    let Some(test) = crate::set("silence").await else { return };
    let faults = Faults::default();
    let proxy = test.cluster.fault_proxy(&faults).await.unwrap();
    faults.inject("GET", "/pods?", 1, Fault::Stall(Duration::ZERO));
    // The first watches of jobs and pods deliver no event.
    for kind in ["/rltrainingjobs?&watch=true", "/pods?&watch=true"] {
        faults.inject("GET", kind, 1, Fault::Stall(Duration::ZERO));
    }
    let client = client_through(&test, &proxy, Duration::from_secs(1)).await;
    let operator = Operator::start(client, &test.namespace);
    let _kubelet = Kubelet::start(&test, |_, _| Some(0));
    test.post("unheard", json!({})).await;
    test.when("unheard", |status| is_true(status, ConditionType::Complete)).await;
    assert_eq!(faults.num_left(), 0, "lists and watches that fell silent");
    operator.stop().await;
}
