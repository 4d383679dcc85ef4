//! An operator that dies at any call of a job's life, and another one that goes on.

use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_cluster::Faults;
use serde_json::json;

use super::{Life, life};
use crate::axe::{Axe, Side, client};
use crate::stage::{Operator, Stage};
use crate::witness::Witness;

/// Lets a job live under operators of which the first ones end at these calls of theirs. Returns whether the
/// last axe fell.
async fn live(stage: &Stage, witness: &Witness, name: &str, axes: &[Axe]) -> bool {
    let life = life(stage, witness, name);
    tokio::pin!(life);
    let mut statuses = 0;
    for axe in axes {
        let operator = Operator::start(client(stage, &Faults::default(), axe).await, &stage.namespace);
        let has_fallen = tokio::select! {
            biased;
            () = axe.fallen() => true,
            () = &mut life => false,
        };
        if !has_fallen {
            // A last call, such as an event, may still follow the end of the life, and the axe fall at that.
            tokio::select! {
                () = axe.fallen() => {}
                () = operator.stop() => {}
            }
            check(witness, name, statuses + axe.num_statuses()).await;
            return false;
        }
        operator.kill().await;
        statuses += axe.num_statuses();
    }
    let axe = Axe::never();
    let operator = Operator::start(client(stage, &Faults::default(), &axe).await, &stage.namespace);
    life.await;
    operator.stop().await;
    check(witness, name, statuses + axe.num_statuses()).await;
    true
}

async fn check(witness: &Witness, name: &str, num_written: usize) {
    let status = witness.when(name, |status| status.completion_time.is_some()).await;
    assert_eq!(status.attempt, Some(3), "{name} cost an attempt more");
    assert_eq!(status.failures_by_cause, [(FailureCause::RetryableIo, 1)].into(), "{name}");
    assert_eq!(num_written, witness.num_statuses(name), "{name}: a write that said nothing new");
}

async fn at_every_call(purpose: &str, side: Side) {
    let Some(stage) = crate::set(purpose).await else { return };
    let _kubelet = Life::kubelet(&stage);
    let witness = Witness::of(&stage).await;
    let mut call = 1;
    while live(&stage, &witness, &format!("dies-at-{call}"), &[Axe::at(call, side)]).await {
        call += 1;
    }
    assert!(call > 20, "a life has more calls than {call}");
    witness.judge(&stage, false).await;
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
    let Some(stage) = crate::set("dynasty").await else { return };
    let _kubelet = Life::kubelet(&stage);
    let witness = Witness::of(&stage).await;
    let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..4 {
        let axe = |_| {
            let side = if next(2) == 0 { Side::Before } else { Side::After };
            Axe::at(1 + next(6) as usize, side)
        };
        let axes: Vec<_> = (0..6).map(axe).collect();
        live(&stage, &witness, &format!("dynasty-{round}"), &axes).await;
    }
    witness.judge(&stage, false).await;
}

#[tokio::test]
async fn a_settled_job_costs_an_operator_no_call_whether_it_stays_or_comes_anew() {
    let Some(stage) = crate::set("settled").await else { return };
    let _kubelet = Life::kubelet(&stage);
    let witness = Witness::of(&stage).await;
    live(&stage, &witness, "ended", &[]).await;
    stage.post("held", json!({"runPolicy": {"suspend": true}})).await;
    let axe = Axe::never();
    let operator = Operator::start(client(&stage, &Faults::default(), &axe).await, &stage.namespace);
    witness.when("held", |status| crate::stage::is_true(status, ConditionType::Suspended)).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let first = axe.num_calls();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(axe.num_calls(), first);
    operator.kill().await;
    let axe = Axe::never();
    let operator = Operator::start(client(&stage, &Faults::default(), &axe).await, &stage.namespace);
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(axe.num_calls(), 0);
    operator.stop().await;
}
