//! An operator that crashes at each call of a job, and another one that continues.

use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_cluster::Faults;
use serde_json::json;

use super::{Life, life};
use crate::crash_point::{CrashPoint, Side, client};
use crate::history::History;
use crate::test_namespace::{Operator, TestNamespace, is_true, until};

/// Lets a job live under operators of which the first ones end at these calls of theirs. Returns whether the
/// last of the crash points was reached.
async fn live(test: &TestNamespace, history: &History, name: &str, crash_points: &[CrashPoint]) -> bool {
    let life = life(test, history, name);
    tokio::pin!(life);
    let mut statuses = 0;
    for crash_point in crash_points {
        let operator = Operator::start(client(test, &Faults::default(), crash_point).await, &test.namespace);
        let has_crashed = tokio::select! {
            biased;
            () = crash_point.crashed() => true,
            () = &mut life => false,
        };
        if !has_crashed {
            // A last call, such as an event, may still follow the end of the life, and the crash be at that.
            tokio::select! {
                () = crash_point.crashed() => {}
                () = operator.stop() => {}
            }
            check(history, name, statuses + crash_point.num_statuses()).await;
            return false;
        }
        operator.kill().await;
        statuses += crash_point.num_statuses();
    }
    let crash_point = CrashPoint::never();
    let operator = Operator::start(client(test, &Faults::default(), &crash_point).await, &test.namespace);
    life.await;
    operator.stop().await;
    check(history, name, statuses + crash_point.num_statuses()).await;
    true
}

async fn check(history: &History, name: &str, num_written: usize) {
    let status = history.when(name, |status| status.completion_time.is_some()).await;
    assert_eq!(status.attempt, Some(3), "{name} cost an attempt more");
    assert_eq!(status.failures_by_cause, [(FailureCause::RetryableIo, 1)].into(), "{name}");
    assert_eq!(num_written, history.num_statuses(name), "{name}: a write that said nothing new");
}

async fn at_every_call(purpose: &str, side: Side) {
    let Some(test) = crate::set(purpose).await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let mut call = 1;
    while live(&test, &history, &format!("dies-at-{call}"), &[CrashPoint::at(call, side)]).await {
        call += 1;
    }
    assert!(call > 20, "a life has more calls than {call}");
    history.check(&test, false).await;
}

#[tokio::test]
async fn a_job_survives_an_operator_that_dies_before_any_call_of_its_life() {
    at_every_call("before", Side::Before).await;
}

#[tokio::test]
async fn a_job_survives_an_operator_that_dies_after_any_call_of_its_life() {
    at_every_call("after", Side::After).await;
}

#[tokio::test]
async fn a_job_survives_operators_that_die_one_after_another() {
    let Some(test) = crate::set("dynasty").await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..4 {
        let crash_point = |_| {
            let side = if next(2) == 0 { Side::Before } else { Side::After };
            CrashPoint::at(1 + next(6) as usize, side)
        };
        let crash_points: Vec<_> = (0..6).map(crash_point).collect();
        live(&test, &history, &format!("dynasty-{round}"), &crash_points).await;
    }
    history.check(&test, false).await;
}

#[tokio::test]
async fn a_settled_job_costs_no_call_also_after_a_restart_of_the_operator() {
    let Some(test) = crate::set("settled").await else { return };
    let _kubelet = Life::kubelet(&test);
    let history = History::of(&test).await;
    live(&test, &history, "ended", &[]).await;
    test.post("held", json!({"runPolicy": {"suspend": true}})).await;
    let crash_point = CrashPoint::never();
    let operator = Operator::start(client(&test, &Faults::default(), &crash_point).await, &test.namespace);
    history.when("held", |status| is_true(status, ConditionType::Suspended)).await;
    operator.settles(&test, || crash_point.num_calls()).await;
    operator.kill().await;
    let crash_point = CrashPoint::never();
    let operator = Operator::start(client(&test, &Faults::default(), &crash_point).await, &test.namespace);
    until("both jobs are reconciled", async || operator.num_reconciles("done") >= 2).await;
    operator.reconciles_all(&test).await;
    assert_eq!(crash_point.num_calls(), 0);
    operator.stop().await;
}
