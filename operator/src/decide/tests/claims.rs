//! Claims that are deleted while workers need them.

use super::super::fixtures::with_spares;
use super::*;

const CLAIM: &str = "quickstart-storage";

/// Returns a pod that has a node, and whose container has not started.
fn bound(idx: u32) -> Worker {
    Worker { node: Some("node".into()), ..worker(idx, 1) }
}

/// Returns the decision about two workers while their claim is being deleted.
fn without_claim(policy: Value, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    let deleting_claim = Some(CLAIM);
    decide(&ReconcileInput { generation: 3, deleting_claim, ..input(&prepared(2, policy), status, &workers) })
}

fn second() -> RLTrainingJobStatus {
    RLTrainingJobStatus { attempt: Some(2), ..starting(9) }
}

#[test]
fn an_attempt_that_cannot_start_on_a_deleted_claim_ends_without_using_a_retry() {
    let unplaced = worker(1, 1);
    let leaving = Worker { is_deleting: true, ..bound(1) };
    for workers in [
        vec![bound(0), bound(1)],
        vec![runs(0), bound(1)],
        vec![runs(0), unplaced],
        vec![runs(0), leaving],
        vec![runs(0)],
    ] {
        let before = starting(90);
        let written = without_claim(json!({}), &before, workers.clone());
        assert!(written.delete.is_empty() && written.start.is_empty(), "the status is written first");
        assert_eq!((written.status.attempt, written.requeue_after), (Some(2), Some(Duration::ZERO)));
        let failure = written.status.last_failure.as_ref().unwrap();
        assert_eq!((failure.cause, failure.node.as_ref()), (FailureCause::Disrupted, None));
        assert!(failure.message.contains(CLAIM), "{}", failure.message);
        assert!(written.events(&before).iter().all(|event| !event.is_warning), "the user has deleted it");

        let stopping = without_claim(json!({}), &written.status, workers.clone());
        let num_deleted = workers.iter().filter(|worker| !worker.is_deleting).count();
        assert_eq!((stopping.delete.len(), stopping.start.len()), (num_deleted, 0));
        let waits = without_claim(json!({}), &stopping.status, Vec::new());
        assert_eq!(
            (waits.start.len(), &waits.status),
            (0, &without_claim(json!({}), &waits.status, vec![]).status)
        );
        let starts = decided(json!({}), &waits.status, Vec::new());
        assert_eq!((starts.status.attempt, indices(&starts.start)), (Some(2), vec![0, 1]));
    }
}

#[test]
fn no_pod_is_made_while_the_claim_is_being_deleted_and_the_status_names_it() {
    let leaving = Worker { is_deleting: true, ..bound(0) };
    for (status, workers) in [
        (RLTrainingJobStatus::default(), vec![]),
        (second(), vec![]),
        (second(), vec![Worker { is_deleting: true, ..runs(0) }]),
        (starting(9), vec![worker(0, 1)]),
        (starting(9), vec![leaving]),
    ] {
        let decision = without_claim(json!({}), &status, workers);
        assert!(decision.start.is_empty() && decision.delete.is_empty(), "{decision:?}");
        assert!(decision.needs_children, "other objects do not wait");
        let told = condition(&decision, ConditionType::Reconciling);
        assert_eq!(told, (ConditionStatus::True, "ClaimTerminating"));
        let JobState::WaitingForClaim(message) = &decision.state else { panic!("{:?}", decision.state) };
        assert!(message.starts_with("claim `quickstart-storage` is being deleted"), "{message}");
        let events = decision.events(&status);
        assert!(events.iter().any(|event| event.reason == Reason::ClaimTerminating), "{events:?}");
    }
}

#[test]
fn workers_that_run_keep_a_deleted_claim_until_they_end() {
    let unready = Worker { is_ready: false, ..runs(1) };
    for workers in [vec![runs(0), runs(1)], vec![runs(0), unready]] {
        for status in [starting(9), running(1, 90)] {
            let decision = without_claim(json!({}), &status, workers.clone());
            assert_eq!(decision, decided(json!({}), &status, workers.clone()));
        }
    }
    let crashed = without_claim(json!({}), &running(1, 90), vec![failed(0, 139, 10), runs(1)]);
    assert_eq!(crashed.status.last_failure.unwrap().cause, FailureCause::Signalled);
}

#[test]
fn the_wait_for_a_deleted_claim_is_no_late_start() {
    let policy = json!({"startupDeadlineSeconds": 60});
    let waits = without_claim(policy.clone(), &starting(600), vec![]);
    assert_eq!(waits.status.last_failure, None);
    assert_eq!(waits.status.attempt_start_time, Some(ago(600)), "it begins with its first pod");
    let starts = decided(policy.clone(), &waits.status, vec![]);
    assert_eq!((starts.start.len(), starts.status.attempt_start_time), (2, Some(ago(0))));
    let stuck = without_claim(policy, &starting(600), vec![bound(0), bound(1)]);
    assert_eq!(stuck.status.last_failure.unwrap().cause, FailureCause::Disrupted);
}

#[test]
fn spares_release_a_deleted_claim_for_which_workers_wait() {
    let spare = |phase| {
        let (name, uid) = ("quickstart-spare-0".into(), "spare-0".into());
        Worker { name, uid, group: "spare".into(), phase, ..runs(0) }
    };
    let deletes_spare = |status: &RLTrainingJobStatus, workers: Vec<Worker>| {
        let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
        let prepared = with_spares(prepared(2, json!({})), 1);
        let deleting_claim = Some(CLAIM);
        let decision = decide(&ReconcileInput { deleting_claim, ..input(&prepared, status, &workers) });
        assert!(decision.start.is_empty(), "{decision:?}");
        let deleted: Vec<_> = decision.delete.iter().map(|deletion| &*deletion.name).collect();
        assert!(deleted.is_empty() || deleted == ["quickstart-spare-0"], "{deleted:?}");
        !deleted.is_empty()
    };
    let with_workers = |phase| vec![runs(0), runs(1), spare(phase)];
    assert!(deletes_spare(&second(), vec![spare(WorkerPhase::Running)]));
    assert!(deletes_spare(&running(1, 90), with_workers(WorkerPhase::Pending)), "it can never start");
    assert!(!deletes_spare(&running(1, 90), with_workers(WorkerPhase::Running)));
    let in_place = RLTrainingJobStatus { attempt_in_place: true, ..second() };
    assert!(!deletes_spare(&in_place, with_workers(WorkerPhase::Running)), "its pods run already");
}
