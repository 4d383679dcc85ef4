//! Workers on nodes that are about to be taken away, or that have a problem.

use rlt_objects::node_signals::Impairment;
use rlt_objects::queue::{Assignment, Workload};

use super::*;
use crate::nodes::NodeState;

fn impaired(cause: FailureCause, since: Option<i64>, stops_workers: bool) -> NodeState {
    let since = since.map(|seconds| now() - SignedDuration::from_secs(seconds));
    let message = "taint spot".to_owned();
    NodeState::Impaired(Arc::new(Impairment { cause, message, since, stops_workers }))
}

fn terminating() -> NodeState {
    impaired(FailureCause::NodeTerminating, None, true)
}

fn with_node(state: NodeState, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    on_nodes(json!({}), status, workers, None, &[("node".into(), state)].into())
}

/// Moves the worker to another node, which is healthy.
fn elsewhere(worker: Worker) -> Worker {
    Worker { node: Some("other".into()), ..worker }
}

fn both() -> Vec<Worker> {
    vec![runs(0), elsewhere(runs(1))]
}

#[test]
fn a_worker_on_a_terminating_node_is_stopped_with_its_grace_period_after_a_status_write() {
    let written = with_node(terminating(), &running(1, 90), both());
    assert!(written.delete.is_empty() && written.requeue_after == Some(Duration::ZERO));
    assert_eq!(condition(&written, ConditionType::Reconciling), (ConditionStatus::True, "NodeTerminating"));
    let stopped = with_node(terminating(), &written.status, both());
    let names: Vec<_> = stopped.delete.iter().map(|one| (&*one.name, one.grace_seconds)).collect();
    assert_eq!(names, [("quickstart-trainer-0", None)]);

    let leaves_by = Some(now() + SignedDuration::from_secs(20));
    let leaving = Worker { is_deleting: true, leaves_by, ..runs(0) };
    let saving = with_node(terminating(), &written.status, vec![leaving, elsewhere(runs(1))]);
    assert_eq!((saving.status.attempt, saving.requeue_after), (Some(1), Some(Duration::from_secs(20))));
    assert_eq!(condition(&saving, ConditionType::Reconciling).1, "NodeTerminating");

    // The evacuated pod is gone with its node before the next decision. The other pod has exited with 80, or
    // still runs.
    for left in [vec![elsewhere(failed(1, 80, 1))], vec![elsewhere(runs(1))]] {
        let ended = on_nodes(json!({}), &saving.status, left, None, &NodeStates::new());
        let failure = ended.status.last_failure.clone().unwrap();
        assert_eq!((failure.cause, failure.node.as_deref()), (FailureCause::NodeTerminating, Some("node")));
        assert_eq!((ended.status.attempt, ended.status.evacuation.clone()), (Some(2), None));
        assert_eq!(ended.status.failures_by_node, [("node".into(), 1)].into());
        assert!(ended.events(&saving.status).iter().all(|event| !event.is_warning));
    }
}

#[test]
fn a_problem_stops_workers_only_where_it_is_new_and_the_cluster_wants_it() {
    let stops = |state: NodeState, status: &RLTrainingJobStatus| {
        with_node(state, status, both()).status.evacuation.map(|evacuation| evacuation.cause)
    };
    let problem = |since, stops_workers| impaired(FailureCause::NodeProblem, Some(since), stops_workers);
    assert_eq!(stops(problem(9, true), &running(1, 90)), Some(FailureCause::NodeProblem));
    assert_eq!(stops(problem(99, true), &running(1, 90)), None, "it was there when the attempt began");
    assert_eq!(stops(problem(9, false), &running(1, 90)), None, "the cluster lets them run on");
    let half = with_node(terminating(), &starting(9), vec![runs(0), worker(1, 1)]);
    assert_eq!(half.status.evacuation, None, "nothing is to be saved yet");
    // The count is 0 after a short attempt that saved a checkpoint before it was evacuated.
    for short_attempts in [0, 1] {
        let in_vain = RLTrainingJobStatus {
            short_attempts: Some(short_attempts),
            failures_by_node: [("node".into(), 1)].into(),
            ..running(2, 5)
        };
        assert_eq!(stops(terminating(), &in_vain), None, "it was left, and came back at once");
    }
}

#[test]
fn a_failure_on_a_node_with_a_problem_is_the_nodes_unless_it_cannot_be() {
    let cause = |code, since| {
        let state = impaired(FailureCause::NodeProblem, Some(since), false);
        let status =
            RLTrainingJobStatus { retries_used: [(FailureCause::Signalled, 99)].into(), ..running(1, 90) };
        let decision = with_node(state, &status, vec![failed(0, code, 5), elsewhere(runs(1))]);
        decision.status.last_failure.unwrap().cause
    };
    assert_eq!(cause(139, 9), FailureCause::NodeProblem);
    assert_eq!(cause(81, 9), FailureCause::NodeProblem);
    assert_eq!(cause(139, 99), FailureCause::Signalled);
    assert_eq!(cause(78, 9), FailureCause::BadConfig);
    let state = impaired(FailureCause::NodeProblem, Some(9), false);
    let lost = with_node(state, &running(1, 90), vec![runs(0), elsewhere(failed(1, 76, 9))]);
    let failure = lost.status.last_failure.unwrap();
    assert_eq!((failure.cause, failure.node.as_deref()), (FailureCause::NodeProblem, Some("node")));
}

#[test]
fn workers_whose_nodes_a_queue_chose_leave_one_with_a_problem_only_if_the_next_place_can_exclude_it() {
    let workers: Vec<_> = both().into_iter().map(Arc::new).collect();
    let leaves = |has_hostnames, prebuilt: Option<&str>, state: NodeState| {
        let assignment =
            Assignment { name: "trainer".into(), has_topology: true, has_hostnames, ..Assignment::default() };
        let workload = Workload {
            has_quota: true,
            is_admitted: true,
            is_ready: true,
            assignments: vec![assignment],
            ..Workload::default()
        };
        let queueing = rlt_objects::queue::Queueing {
            queue: Some("team".into()),
            prebuilt: prebuilt.map(str::to_owned),
            is_served: true,
            workload: Some(Arc::new(workload)),
            ..rlt_objects::queue::NO_QUEUE
        };
        let decision = decide(&ReconcileInput {
            generation: 3,
            nodes: &[("node".into(), state)].into(),
            queueing: &queueing,
            ..input(&prepared(2, json!({})), &running(1, 90), &workers)
        });
        decision.status.evacuation.is_some()
    };
    let problem = || impaired(FailureCause::NodeProblem, Some(9), true);
    assert!(leaves(false, None, terminating()) && leaves(true, None, terminating()));
    assert!(!leaves(false, None, problem()), "the queue chose no single nodes");
    assert!(!leaves(true, Some("w"), problem()), "the Workload is another client's");
    assert!(leaves(true, None, problem()));
}
