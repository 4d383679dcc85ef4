//! Jobs with a queue that fail on a node which Kueue has assigned to them.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rlt_api::status::{CheckpointStatus, RLTrainingJobStatus};
use rlt_objects::node_signals::Impairment;
use rlt_objects::queue::{Assignment, GiveBack, NO_QUEUE, Queueing, Workload, WorkloadAction};
use rlt_objects::worker::{Worker, WorkerPhase};
use serde_json::{Value, json};

use super::*;
use crate::decide::fixtures::{asked, exit, input, now, prepared, waiting, worker};
use crate::decide::{Decision, JobEvent, ReconcileInput, decide};
use crate::nodes::{NodeState, NodeStates};

/// Exit code of a failed GPU, and of a crash.
const DEVICE_FAILED: i32 = 81;
const CRASHED: i32 = 139;

/// Returns an admitted Workload whose nodes Kueue has chosen, and which excludes `excluded_nodes`.
fn admitted(excluded_nodes: &[&str]) -> Workload {
    let assignment = Assignment {
        name: "trainer".into(),
        has_topology: true,
        has_hostnames: true,
        ..Assignment::default()
    };
    Workload { has_quota: true, is_admitted: true, assignments: vec![assignment], ..queued(excluded_nodes) }
}

/// Returns a Workload that waits for quota, and excludes `excluded_nodes`.
fn queued(excluded_nodes: &[&str]) -> Workload {
    let excluded_nodes = excluded_nodes.iter().map(|node| (*node).to_owned()).collect();
    Workload { excluded_nodes, ..waiting() }
}

fn running() -> RLTrainingJobStatus {
    let since = (now() - SignedDuration::from_secs(600)).to_string();
    RLTrainingJobStatus {
        attempt: Some(1),
        active_since: Some(since.clone()),
        attempt_start_time: Some(since.clone()),
        attempt_running_time: Some(since),
        ..RLTrainingJobStatus::default()
    }
}

fn runs(idx: u32) -> Worker {
    let node = Some(format!("node-{idx}").into());
    Worker { phase: WorkerPhase::Running, is_ready: true, node, ..worker(idx, 1) }
}

fn failed(idx: u32, code: i32) -> Worker {
    let exit = Some(exit(code, now().as_second() - 9));
    Worker { phase: WorkerPhase::Failed, is_ready: false, exit, ..runs(idx) }
}

fn decided_at(
    now: Timestamp,
    policy: Value,
    queueing: &Queueing,
    status: &RLTrainingJobStatus,
    workers: Vec<Worker>,
) -> Decision {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    decide(&ReconcileInput { queueing, now, ..input(&prepared(2, policy), status, &workers) })
}

fn decided(workload: Option<Workload>, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    decided_at(now(), json!({}), &asked(workload), status, workers)
}

fn suspended(decision: &Decision) -> (ConditionStatus, &str, &str) {
    let mut conditions = decision.status.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == ConditionType::Suspended).unwrap();
    (condition.status, &condition.reason, &condition.message)
}

#[test]
fn a_place_with_a_failed_gpu_is_given_back_and_the_next_attempt_begins_without_its_node() {
    let both = || vec![failed(0, DEVICE_FAILED), runs(1)];
    let over = decided(Some(admitted(&[])), &running(), both());
    assert_eq!((over.status.attempt, over.status.active_since.clone()), (Some(1), None));
    assert_eq!(over.status.excluded_nodes, ["node-0"]);
    assert_eq!((over.delete.len(), over.queue.clone()), (0, None), "the status is written first");
    assert_eq!(over.requeue_after, Some(Duration::ZERO));
    let is_told = |event: &JobEvent| event.is_warning && event.message.contains("exit code 81");
    assert!(over.events(&running()).iter().any(is_told));

    let stops = decided(Some(admitted(&[])), &over.status, both());
    let graces: Vec<_> = stops.delete.iter().map(|one| (&*one.name, one.grace_seconds)).collect();
    assert_eq!(graces, [("quickstart-trainer-0", Some(5)), ("quickstart-trainer-1", Some(5))]);
    assert_eq!(stops.queue, None, "a worker may still run in the place");

    let gone = decided(Some(admitted(&[])), &stops.status, vec![]);
    assert_eq!(gone.queue, Some(WorkloadAction::GiveBack(GiveBack::Delete(Arc::new(admitted(&[]))))));
    let (status, reason, message) = suspended(&gone);
    assert_eq!((status, reason), (ConditionStatus::True, "Queued"));
    assert!(message.contains("gives back: its workers failed on node-0"), "{message}");

    let asks = decided(None, &gone.status, vec![]);
    assert_eq!((asks.queue.clone(), asks.start.len()), (Some(WorkloadAction::Create), 0));
    let waits = decided(Some(queued(&["node-0"])), &asks.status, vec![]);
    assert!(suspended(&waits).2.contains("without node-0"), "{}", suspended(&waits).2);
    let begins = decided(Some(admitted(&["node-0"])), &waits.status, vec![]);
    assert_eq!((begins.status.attempt, begins.queue.clone()), (Some(2), None));
    let starts = decided(Some(admitted(&["node-0"])), &begins.status, vec![]);
    assert_eq!(starts.start.len(), 2);
    assert_eq!(starts.status.excluded_nodes, ["node-0"]);
    assert_eq!(starts.status.failures_by_cause, [(FailureCause::DeviceFailed, 1)].into());
}

#[test]
fn a_node_at_fault_uses_up_no_retries_with_and_without_a_queue_whatever_the_number_of_workers() {
    for cause in [FailureCause::DeviceFailed, FailureCause::NodeProblem, FailureCause::NodeTerminating] {
        let why = Impairment { cause, message: "taint".into(), since: None, stops_workers: true };
        let mut nodes = NodeStates::new();
        if cause != FailureCause::DeviceFailed {
            nodes.insert("node-0".into(), NodeState::Impaired(Arc::new(why)));
        }
        for (num_workers, queueing) in [1, 2]
            .into_iter()
            .flat_map(|num_workers| [(num_workers, asked(Some(admitted(&[])))), (num_workers, NO_QUEUE)])
        {
            let prepared = prepared(num_workers, json!({}));
            let mut status = running();
            for _ in 0..8 {
                let others = (1..num_workers).map(runs);
                let workers: Vec<_> =
                    std::iter::once(failed(0, DEVICE_FAILED)).chain(others).map(Arc::new).collect();
                let input = input(&prepared, &status, &workers);
                let over = decide(&ReconcileInput { queueing: &queueing, nodes: &nodes, ..input }).status;
                assert_eq!(over.completion_time, None, "{cause:?} with {num_workers} workers");
                assert_eq!(over.last_failure.map(|failure| failure.cause), Some(cause));
                assert_eq!(over.excluded_nodes.len(), usize::from(queueing.queue.is_some()), "{cause:?}");
                // The next attempt begins on the same node, because no other one is free.
                status = RLTrainingJobStatus {
                    retries_used: over.retries_used,
                    failures_by_cause: over.failures_by_cause,
                    failures_by_node: over.failures_by_node,
                    ..running()
                };
            }
        }
    }
}

#[test]
fn nodes_that_failed_one_after_the_other_are_all_excluded_up_to_a_number() {
    let excluded_nodes: Vec<_> = (10..26).map(|idx| format!("node-{idx}")).collect();
    let names: Vec<_> = excluded_nodes.iter().map(String::as_str).collect();
    let before = RLTrainingJobStatus { excluded_nodes: excluded_nodes.clone(), ..running() };
    let over = decided(Some(admitted(&names)), &before, vec![failed(0, DEVICE_FAILED), runs(1)]);
    let expected: Vec<_> = excluded_nodes.into_iter().skip(1).chain(["node-0".to_owned()]).collect();
    assert_eq!(over.status.excluded_nodes, expected);
}

#[test]
fn a_job_keeps_its_place_where_no_node_can_be_excluded() {
    let mut without_hostnames = admitted(&[]);
    without_hostnames.assignments[0].has_hostnames = false;
    let prebuilt = Queueing { prebuilt: Some("w".into()), ..asked(Some(admitted(&[]))) };
    for queueing in [asked(Some(without_hostnames)), prebuilt] {
        let workers = vec![failed(0, DEVICE_FAILED), runs(1)];
        let next = decided_at(now(), json!({}), &queueing, &running(), workers);
        assert_eq!((next.status.attempt, next.status.excluded_nodes.len()), (Some(2), 0));
        assert!(next.status.active_since.is_some());
    }
}

#[test]
fn a_job_whose_place_multikueue_keeps_says_where_its_next_attempt_may_begin() {
    let prebuilt = Queueing { prebuilt: Some("w".into()), ..asked(Some(admitted(&[]))) };
    let told = |queueing: &Queueing, code: i32| {
        let decision = decided_at(now(), json!({}), queueing, &running(), vec![failed(0, code), runs(1)]);
        let is_told = |event: &JobEvent| event.message.contains("may begin on node-0: cordon the node");
        let message = decision.status.last_failure.clone().unwrap().message;
        assert_eq!(message.contains("MultiKueue keeps"), decision.events(&running()).iter().any(is_told));
        message.contains("MultiKueue keeps")
    };
    assert!(told(&prebuilt, DEVICE_FAILED));
    assert!(!told(&prebuilt, CRASHED), "a first crash may be the program's");
    assert!(!told(&asked(Some(admitted(&[]))), DEVICE_FAILED), "the node is excluded");
    let mut without_hostnames = admitted(&[]);
    without_hostnames.assignments[0].has_hostnames = false;
    let elsewhere = Queueing { prebuilt: Some("w".into()), ..asked(Some(without_hostnames)) };
    assert!(!told(&elsewhere, DEVICE_FAILED), "the scheduler chooses the nodes");
}

#[test]
fn a_crash_gives_the_place_back_when_it_repeats_on_a_node_without_progress() {
    let crashed = |status: &RLTrainingJobStatus| {
        decided(Some(admitted(&[])), status, vec![failed(0, CRASHED), runs(1)]).status
    };
    let first = crashed(&running());
    assert_eq!((first.attempt, first.excluded_nodes.len()), (Some(2), 0));
    let again = RLTrainingJobStatus { attempt: Some(1), ..first };
    let second = crashed(&again);
    assert_eq!((second.attempt, second.excluded_nodes), (Some(1), vec!["node-0".to_owned()]));
    let checkpoint = CheckpointStatus {
        step: 7,
        path: String::new(),
        digest: String::new(),
        world_size: None,
        latest: true,
        time: now().to_string(),
    };
    let advanced = RLTrainingJobStatus { checkpoints: vec![checkpoint], ..again };
    assert!(crashed(&advanced).excluded_nodes.is_empty(), "the job makes progress there");
}

#[test]
fn a_rule_that_avoids_nodes_excludes_the_node_at_its_first_failure() {
    let excluded_by = |avoid_node: bool| {
        let codes = json!({"operator": "In", "values": [CRASHED]});
        let rule = json!({"action": "Ignore", "avoidNode": avoid_node, "onExitCodes": codes});
        let policy = json!({"failurePolicy": {"rules": [rule]}});
        let workers = vec![failed(0, CRASHED), runs(1)];
        decided_at(now(), policy, &asked(Some(admitted(&[]))), &running(), workers).status.excluded_nodes
    };
    assert_eq!(excluded_by(true), ["node-0"]);
    assert!(excluded_by(false).is_empty());
}

#[test]
fn a_job_that_waits_long_for_other_nodes_allows_all_again() {
    let held = RLTrainingJobStatus { active_since: None, excluded_nodes: vec!["node-0".into()], ..running() };
    let waits = decided(Some(queued(&["node-0"])), &held, vec![]);
    let after = |seconds: i64, workload: Workload| {
        let at = now() + SignedDuration::from_secs(seconds);
        decided_at(at, json!({}), &asked(Some(workload)), &waits.status, vec![])
    };
    let soon = after(60, queued(&["node-0"]));
    assert_eq!(soon.status.excluded_nodes, ["node-0"]);
    assert_eq!(soon.requeue_after, Some(LONGEST_WAIT - Duration::from_secs(60)));
    let late = after(900, queued(&["node-0"]));
    assert_eq!((late.status.excluded_nodes.len(), late.requeue_after), (0, Some(Duration::ZERO)));
    let unrelated = after(900, queued(&[]));
    assert_eq!(unrelated.status.excluded_nodes, ["node-0"], "the wait is not for other nodes");
}

#[test]
fn a_job_that_its_user_suspends_allows_all_nodes_again() {
    let status = RLTrainingJobStatus { excluded_nodes: vec!["node-0".into()], ..running() };
    let queueing = asked(Some(admitted(&["node-0"])));
    let decision = decided_at(now(), json!({"suspend": true}), &queueing, &status, vec![runs(0), runs(1)]);
    assert!(decision.status.excluded_nodes.is_empty());
}
