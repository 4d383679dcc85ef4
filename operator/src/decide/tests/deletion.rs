//! Pods that are deleted, nodes that are lost, and pods that never start.

use super::*;
use crate::decide::ApplyFailure;
use crate::nodes::NodeState;

fn preempted(worker: Worker, seconds_left: i64) -> Worker {
    let reason = "PreemptionByScheduler".to_owned();
    Worker {
        is_deleting: true,
        leaves_by: Some(now() + SignedDuration::from_secs(seconds_left)),
        disruption: Some(Box::new(Explanation { reason, message: "a better one came".into() })),
        ..worker
    }
}

fn with_node(state: NodeState, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    on_nodes(json!({}), status, workers, None, &[("node".into(), state)].into())
}

fn second(seconds: i64) -> RLTrainingJobStatus {
    RLTrainingJobStatus { attempt: Some(2), ..starting(seconds) }
}

#[test]
fn a_worker_that_is_stopped_has_its_time_to_save_a_checkpoint_with_all_others() {
    let leaving = decided(json!({}), &running(1, 90), vec![preempted(runs(0), 20), runs(1)]);
    assert_eq!((leaving.status.attempt, leaving.requeue_after), (Some(1), Some(Duration::from_secs(20))));
    assert!(leaving.delete.is_empty() && leaving.start.is_empty());
    assert_eq!(condition(&leaving, ConditionType::Reconciling), (ConditionStatus::True, "Disrupted"));

    // All pods exit with 80; a peer of the preempted one may exit first.
    let ended = vec![preempted(failed(0, 80, 1), 9), failed(1, 80, 2)];
    let ended = decided(json!({}), &leaving.status, ended);
    let failure = ended.status.last_failure.clone().unwrap();
    assert_eq!((failure.cause, failure.exit_code), (FailureCause::Disrupted, Some(80)));
    assert_eq!(failure.pod.as_deref(), Some("quickstart-trainer-0"));
    assert!(failure.message.contains("a better one came"), "{}", failure.message);
    assert!(ended.events(&leaving.status).iter().all(|note| !note.is_warning), "preemption is normal");
    let next = decided(json!({}), &ended.status, vec![runs(1)]);
    assert_eq!(next.delete[0].grace_seconds, None, "a worker that saves a checkpoint keeps its grace period");

    let over = decided(json!({}), &running(1, 90), vec![preempted(runs(0), 0), runs(1)]);
    assert_eq!(over.status.attempt, Some(2));
    let next = decided(json!({}), &over.status, vec![runs(1)]);
    assert_eq!(next.delete[0].grace_seconds, Some(5), "with a worker gone, nothing can be saved");
    let alone = decided(json!({}), &running(1, 90), vec![preempted(runs(0), 20), failed(1, 76, 9)]);
    assert_eq!(alone.status.attempt, Some(2), "the others have lost it already");
}

#[test]
fn a_worker_on_a_lost_node_is_force_deleted_and_one_on_a_silent_node_keeps_its_place() {
    let lost = with_node(NodeState::Lost, &running(1, 90), vec![runs(0), worker(1, 1)]);
    let failure = lost.status.last_failure.clone().unwrap();
    assert_eq!((failure.cause, failure.node.as_deref()), (FailureCause::NodeLost, Some("node")));
    let silent = with_node(NodeState::Silent, &running(1, 90), vec![runs(0), runs(1)]);
    assert_eq!(silent.status.attempt, Some(1), "training may go on without the cluster");

    for leaving in [runs(0), preempted(runs(0), 20), preempted(failed(0, 1, 9), -20)] {
        let decision = with_node(NodeState::Lost, &second(0), vec![leaving]);
        assert_eq!((decision.delete[0].grace_seconds, indices(&decision.start)), (Some(0), vec![1]));
        assert_eq!(decision.delete[0].lost_node.as_deref(), Some("node"));
    }
    let decision = with_node(NodeState::Silent, &second(0), vec![preempted(runs(0), -1)]);
    assert_eq!((decision.delete.len(), indices(&decision.start)), (0, vec![1]));
    assert_eq!(condition(&decision, ConditionType::Stalled), (ConditionStatus::True, "NodeUnreachable"));
    let decision = with_node(NodeState::Silent, &second(0), vec![preempted(runs(0), 20)]);
    assert_eq!(condition(&decision, ConditionType::Stalled).0, ConditionStatus::False);
    assert_eq!(decision.requeue_after, Some(Duration::from_secs(20)));
}

#[test]
fn the_pods_of_a_lost_node_hold_up_neither_a_pause_nor_the_end() {
    let nodes = [("node".into(), NodeState::Lost)].into();
    let stuck = || vec![preempted(runs(0), -9)];
    let suspended = RLTrainingJobStatus { active_since: None, ..running(1, 90) };
    let pause = on_nodes(json!({"suspend": true}), &suspended, stuck(), None, &nodes);
    assert_eq!(pause.delete[0].grace_seconds, Some(0));
    let ended = RLTrainingJobStatus { completion_time: Some(ago(9)), ..running(1, 90) };
    let end = on_nodes(json!({}), &ended, stuck(), None, &nodes);
    assert_eq!((end.delete[0].grace_seconds, end.status.clone()), (Some(0), end.status));
}

#[test]
fn the_loss_of_a_peer_on_a_silent_node_is_the_nodes() {
    let on_silent = Worker { node: Some("silent".into()), ..runs(1) };
    let nodes = [("node".into(), NodeState::Answers), ("silent".into(), NodeState::Silent)].into();
    let workers = vec![failed(0, 76, 9), on_silent];
    let failure = on_nodes(json!({}), &running(1, 90), workers, None, &nodes).status.last_failure.unwrap();
    assert_eq!(
        (failure.cause, failure.pod.as_deref()),
        (FailureCause::NodeLost, Some("quickstart-trainer-1"))
    );
}

#[test]
fn the_first_worker_alone_decides_that_the_work_is_done_and_the_others_have_a_minute() {
    let soon = decided(json!({}), &running(1, 90), vec![succeeded(0), runs(1)]);
    assert_eq!((soon.state, soon.requeue_after), (JobState::Running, Some(Duration::from_secs(51))));
    let late = |seconds| Worker { exit: Some(exit(0, now().as_second() - seconds)), ..succeeded(0) };
    for others in [vec![], vec![failed(1, 76, 1)], vec![failed(1, 137, 1)], vec![succeeded(1)]] {
        let all = [vec![succeeded(0)], others].concat();
        assert_eq!(decided(json!({}), &running(1, 90), all).state, JobState::Complete);
    }
    for seconds in [60, -3600] {
        let over = decided(json!({}), &running(1, 90), vec![late(seconds), runs(1)]);
        assert_eq!(over.state, JobState::Complete, "{seconds}");
    }
    let other = decided(json!({}), &running(1, 90), vec![runs(0), succeeded(1)]);
    assert_eq!((other.state, other.requeue_after), (JobState::Running, None));
}

#[test]
fn a_delayed_start_reports_what_it_waits_for() {
    let waits =
        || Worker { waiting: Some(Box::new(Waiting::Unschedulable("0/3 nodes".into()))), ..worker(0, 1) };
    let early = decided(json!({}), &starting(4), vec![waits(), runs(1)]);
    assert_eq!((early.state, early.requeue_after), (JobState::Starting, Some(Duration::from_secs(6))));
    let late = decided(json!({}), &starting(10), vec![waits(), runs(1)]);
    assert_eq!(condition(&late, ConditionType::Reconciling), (ConditionStatus::True, "NotScheduled"));
    assert_eq!((late.requeue_after, late.events(&early.status).len()), (None, 1));
    let started = decided(json!({}), &late.status, vec![runs(0), runs(1)]);
    assert_eq!(started.state, JobState::Running);
}

#[test]
fn workers_that_started_while_no_operator_ran_have_not_started_late() {
    let policy = json!({"startupDeadlineSeconds": 60});
    let decision = decided(policy.clone(), &starting(600), vec![runs(0), runs(1)]);
    assert_eq!((decision.state, decision.status.last_failure), (JobState::Running, None));
    let waits = decided(policy, &starting(600), vec![runs(0), worker(1, 1)]);
    assert_eq!(waits.status.last_failure.unwrap().cause, FailureCause::StartFailed);
}

#[test]
fn an_attempt_whose_pods_no_operator_has_created_yet_does_not_start_late() {
    let policy = json!({"startupDeadlineSeconds": 60});
    let decision = decided(policy.clone(), &starting(600), vec![]);
    assert_eq!((&decision.state, decision.start.len()), (&JobState::Starting, 2));
    assert_eq!(decision.requeue_after, Some(Duration::from_secs(60)));
    let created = decided(policy.clone(), &decision.status, vec![worker(0, 1), worker(1, 1)]);
    assert_eq!((created.state, created.status.last_failure), (JobState::Starting, None));

    let failure = ApplyFailure {
        reason: rlt_api::Reason::WorkersRefused,
        message: "exceeded quota".into(),
        needs_action: true,
    };
    let refused = decided(policy.clone(), &starting(600), vec![]).failed(failure, now()).status;
    let refused = RLTrainingJobStatus { attempt_start_time: Some(ago(60)), ..refused };
    let late = decided(policy, &refused, vec![]).status.last_failure.unwrap();
    assert_eq!(late.cause, FailureCause::StartFailed, "pods that are refused do not start in time");
}

#[test]
fn a_trainer_that_is_not_heard_is_judged_neither_by_an_earlier_report_nor_by_the_status() {
    let policy = json!({"stallDeadlineSeconds": 30});
    let progress = Some(Progress { step: 7, step_time: Some(ago(400)), ..Progress::default() });
    let status = RLTrainingJobStatus { progress: progress.clone(), ..running(1, 500) };
    let report = Report { attempt: 1, progress, ..Report::default() };
    // The operator has just started, or the channel is interrupted.
    for heard in [None, Some(&report)] {
        let decision = reported(policy.clone(), &status, vec![runs(0), runs(1)], heard);
        assert_eq!(decision.state, JobState::Running);
        assert_eq!(decision.requeue_after, Some(Duration::from_secs(30)), "it is judged once it is heard");
    }
}
