//! Hot spares: which pod takes the ranks of a lost worker, when, and which pods stay.

use rlt_objects::worker::Launcher;
use rlt_objects::worker_id::WorkerId;

use super::super::Assignment;
use super::super::fixtures::with_spares;
use super::*;
use crate::nodes::NodeState;

/// Returns the worker with a launcher that reports running processes.
fn following(worker: Worker) -> Worker {
    let attempt = worker.attempt;
    Worker { launcher: Some(Box::new(Launcher { attempt, ..Launcher::default() })), ..worker }
}

/// Returns a worker whose processes exited with this code, and whose pod waits for the next attempt.
fn waiting(idx: u32, code: i32) -> Worker {
    let ended = Some(*exit(code, now().as_second() - 9));
    Worker { launcher: Some(Box::new(Launcher { attempt: 1, ended, is_loaded: false })), ..runs(idx) }
}

/// Returns a spare that has loaded everything.
fn spare(idx: u32) -> Worker {
    let name = format!("quickstart-spare-{idx}").into();
    let launcher = Launcher { is_loaded: true, ..Launcher::default() };
    let uid = format!("spare-{idx}").into();
    Worker { name, uid, group: "spare".into(), launcher: Some(Box::new(launcher)), ..runs(idx) }
}

/// Returns the decision about two workers in a job with `num_spares` spares.
fn with(num_spares: u32, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    on(num_spares, status, workers, &NodeStates::new())
}

fn on(num_spares: u32, status: &RLTrainingJobStatus, workers: Vec<Worker>, nodes: &NodeStates) -> Decision {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    decide(&ReconcileInput {
        nodes,
        ..input(&with_spares(prepared(2, json!({})), num_spares), status, &workers)
    })
}

fn names(ids: &[WorkerId]) -> Vec<String> {
    ids.iter().map(|id| format!("{}-{}", id.group, id.idx)).collect()
}

fn assigned(decision: &Decision) -> Vec<(&str, u32, u32)> {
    let one = |one: &'_ Assignment| (one.worker.idx, one.attempt);
    decision.assign.iter().map(|each| (&*each.name, one(each).0, one(each).1)).collect()
}

fn deleted(decision: &Decision) -> Vec<&str> {
    decision.delete.iter().map(|deletion| &*deletion.name).collect()
}

fn promoted(decision: &Decision) -> Vec<(u32, &str)> {
    decision.status.promoted_spares.iter().map(|one| (one.worker, one.pod.as_str())).collect()
}

#[test]
fn spares_are_created_when_all_workers_run_and_count_for_nothing_else() {
    let begun = with(2, &starting(9), vec![runs(0)]);
    assert_eq!(names(&begun.start), ["trainer-1"]);
    let all = with(2, &starting(9), vec![runs(0), runs(1)]);
    assert_eq!(
        (all.state.clone(), names(&all.start)),
        (JobState::Running, vec!["spare-0".into(), "spare-1".into()])
    );
    assert_eq!(all.status.ready.as_deref(), Some("2/2"));
    let groups = &all.status.worker_groups;
    let counts: Vec<_> = groups.iter().map(|group| (&*group.name, group.desired, group.pending)).collect();
    assert_eq!(counts, [("trainer", 2, 0), ("spare", 2, 2)]);
    let unloaded = Worker { launcher: None, ..spare(1) };
    let ready = with(2, &running(1, 60), vec![runs(0), runs(1), spare(0), unloaded]);
    assert_eq!((ready.status.worker_groups[1].running, ready.status.worker_groups[1].ready), (2, 1));
    assert!(ready.start.is_empty() && ready.delete.is_empty());
    let failing = Worker { phase: WorkerPhase::Failed, exit: Some(exit(1, 0)), ..spare(0) };
    let failed = with(1, &running(1, 60), vec![runs(0), runs(1), failing]);
    assert_eq!((failed.state.clone(), deleted(&failed)), (JobState::Running, vec!["quickstart-spare-0"]));
    assert_eq!(failed.status.attempt, Some(1), "no attempt ends with a spare");
}

#[test]
fn a_spare_takes_the_ranks_of_a_lost_worker_and_the_others_stay() {
    let workers = || vec![waiting(0, 76), failed(1, 137, 9), spare(0)];
    let next = with(1, &running(1, 60), workers());
    assert_eq!((next.status.attempt, next.status.attempt_in_place), (Some(2), true));
    assert_eq!(promoted(&next), [(1, "quickstart-spare-0")]);
    assert!(next.assign.is_empty() && next.delete.is_empty(), "the status is written first");
    let events = next.events(&running(1, 60));
    let begins = "attempt 2 begins in the pods that are there; quickstart-spare-0 is worker 1";
    assert!(events.iter().any(|event| event.message == begins), "{events:?}");

    let applied = with(1, &next.status, workers());
    assert_eq!(assigned(&applied), [("quickstart-trainer-0", 0, 2), ("quickstart-spare-0", 1, 2)]);
    assert_eq!((deleted(&applied), applied.start.len()), (vec!["quickstart-trainer-1"], 0));

    let taken = Worker { group: "trainer".into(), idx: 1, attempt: 2, ..spare(0) };
    let kept = Worker { attempt: 2, ..waiting(0, 76) };
    let running_again = with(1, &applied.status, vec![kept, taken]);
    assert_eq!(running_again.state, JobState::Running, "what was said of attempt 1 fails no later one");
    assert_eq!(names(&running_again.start), ["spare-1"], "another spare of another name");
    assert_eq!(promoted(&running_again), [(1, "quickstart-spare-0")]);
}

#[test]
fn an_attempt_without_enough_spares_is_made_of_new_pods() {
    let workers = || vec![failed(0, 137, 9), failed(1, 137, 9), spare(0)];
    let next = with(1, &running(1, 60), workers());
    assert_eq!((next.status.attempt, next.status.attempt_in_place), (Some(2), false));
    let applied = with(1, &next.status, workers());
    assert!(applied.assign.is_empty());
    assert_eq!(deleted(&applied), ["quickstart-trainer-0", "quickstart-trainer-1"], "the spare stays");
    // A pod does not stay if its launcher has not reported, or if its node does not answer.
    let silent = with(1, &running(1, 60), vec![runs(0), failed(1, 137, 9), spare(0)]);
    assert!(!silent.status.attempt_in_place);
    let nodes = NodeStates::from([("node".into(), NodeState::Silent)]);
    let on_silent = on(1, &running(1, 60), vec![following(runs(0)), failed(1, 137, 9), spare(0)], &nodes);
    assert!(!on_silent.status.attempt_in_place);
}

#[test]
fn a_rank_that_fails_alone_restarts_in_its_pod_unless_its_node_may_be_at_fault() {
    // The workers lost each other: both pods stay, and no spare is used.
    let lost = with(1, &running(1, 60), vec![waiting(0, 76), waiting(1, 76), spare(0)]);
    assert_eq!((lost.status.attempt_in_place, promoted(&lost)), (true, vec![]));
    assert_eq!(lost.status.last_failure.as_ref().unwrap().exit_code, Some(76));
    // A device failed: another node may be healthy, so a spare is used.
    let device = with(1, &running(1, 60), vec![waiting(0, 76), waiting(1, 81), spare(0)]);
    assert_eq!(device.status.last_failure.as_ref().unwrap().cause, FailureCause::DeviceFailed);
    assert_eq!(promoted(&device), [(1, "quickstart-spare-0")]);
}

#[test]
fn a_spare_waits_until_no_process_of_the_worker_can_run() {
    let status = RLTrainingJobStatus {
        attempt_in_place: true,
        promoted_spares: vec![promoted_spare(1, "quickstart-spare-0")],
        attempt_running_time: None,
        ..running(2, 9)
    };
    let leaving = Worker { is_deleting: true, ..following(runs(1)) };
    let decision = with(1, &status, vec![following(runs(0)), leaving.clone(), spare(0)]);
    assert_eq!(assigned(&decision), [("quickstart-trainer-0", 0, 2)]);
    let over = Worker { phase: WorkerPhase::Failed, exit: Some(exit(137, 0)), ..leaving };
    let decision = with(1, &status, vec![following(runs(0)), over, spare(0)]);
    assert_eq!(assigned(&decision).len(), 2);
    let decision = with(1, &status, vec![following(runs(0)), waiting(1, 81), spare(0)]);
    assert_eq!(assigned(&decision).len(), 2, "its launcher says that all are gone");
}

#[test]
fn a_pod_that_is_lost_before_it_took_part_ends_the_attempt() {
    let status = RLTrainingJobStatus {
        attempt_in_place: true,
        promoted_spares: vec![promoted_spare(1, "quickstart-spare-0")],
        attempt_running_time: None,
        ..running(2, 9)
    };
    let gone = with(1, &status, vec![following(runs(0))]);
    assert_eq!((gone.status.attempt, gone.status.attempt_in_place), (Some(3), false));
    assert_eq!(gone.status.last_failure.as_ref().unwrap().cause, FailureCause::Disrupted);
    let deleted = Worker { is_deleting: true, ..following(runs(0)) };
    let decision = with(1, &status, vec![deleted, spare(0)]);
    assert_eq!(decision.status.attempt, Some(3));
    // With another spare, the job continues in place, and the promoted spare keeps its ranks.
    let kept = Worker { group: "trainer".into(), idx: 1, attempt: 2, ..following(spare(0)) };
    let lost = Worker { attempt: 2, ..failed(0, 137, 9) };
    let again = with(1, &status, vec![lost, following(kept), spare(1)]);
    assert_eq!(promoted(&again), [(0, "quickstart-spare-1"), (1, "quickstart-spare-0")]);
}

/// New spares have a newer image after an upgrade of the chart while a job runs.
#[test]
fn a_spare_takes_the_ranks_of_workers_of_its_own_image_only() {
    let old = |worker: Worker| Worker { image: 1, ..worker };
    let new = |worker: Worker| Worker { image: 2, ..worker };
    let after_crash = |workers| with(2, &running(1, 60), workers).status;
    let newer = after_crash(vec![old(waiting(0, 76)), old(failed(1, 137, 9)), new(spare(0))]);
    assert_eq!((newer.attempt, newer.attempt_in_place), (Some(2), false));
    let workers = vec![old(waiting(0, 76)), old(failed(1, 137, 9)), new(spare(0)), old(spare(1))];
    let both = with(2, &running(1, 60), workers);
    assert_eq!(promoted(&both), [(1, "quickstart-spare-1")]);
    let mixed = after_crash(vec![old(waiting(0, 76)), new(waiting(1, 76)), old(spare(0))]);
    assert!(!mixed.attempt_in_place, "an upgrade between two pods of an attempt");
    // If no worker stays, all ranks move to spares of one image.
    let crashed = |idx| old(failed(idx, 137, 9));
    let all = with(2, &running(1, 60), vec![crashed(0), crashed(1), new(spare(0)), new(spare(1))]);
    assert_eq!(promoted(&all), [(0, "quickstart-spare-0"), (1, "quickstart-spare-1")]);
    assert!(!after_crash(vec![crashed(0), crashed(1), new(spare(0)), old(spare(1))]).attempt_in_place);
}

#[test]
fn a_spare_of_an_older_image_than_the_workers_is_replaced_and_one_of_a_newer_image_is_not() {
    let with_spare = |status: &RLTrainingJobStatus, spare: Worker| {
        let mut workers = vec![spare];
        workers.extend([0, 1].map(|idx| Worker { image: 2, attempt: 2, ..runs(idx) }));
        with(1, status, workers)
    };
    let older = Worker { image: 1, attempt: 1, ..spare(0) };
    assert_eq!(deleted(&with_spare(&running(2, 60), older.clone())), ["quickstart-spare-0"]);
    // Its successor would have the newer image again.
    let newer = Worker { image: 3, attempt: 2, ..spare(0) };
    assert!(with_spare(&running(2, 60), newer).delete.is_empty());
    let same = Worker { image: 2, attempt: 1, ..spare(0) };
    assert!(with_spare(&running(2, 60), same).delete.is_empty());
    // The workers are pods of the first attempt.
    let in_place = RLTrainingJobStatus { attempt_in_place: true, ..running(2, 60) };
    assert!(with_spare(&in_place, older).delete.is_empty());
}

#[test]
fn a_spare_without_a_node_gives_way_to_workers_and_all_spares_end_with_the_job() {
    let unplaced = Worker { phase: WorkerPhase::Pending, node: None, launcher: None, ..spare(0) };
    let status = RLTrainingJobStatus { attempt_running_time: None, ..running(2, 9) };
    let workers = vec![Worker { attempt: 2, ..runs(0) }, unplaced.clone(), spare(1)];
    assert_eq!(deleted(&with(2, &status, workers)), ["quickstart-spare-0"]);
    let kept = with(2, &running(1, 60), vec![runs(0), runs(1), unplaced, spare(1)]);
    assert!(kept.delete.is_empty(), "it waits where no worker does");
    let fewer = with(1, &running(1, 60), vec![runs(0), runs(1), spare(0), spare(1)]);
    assert_eq!(deleted(&fewer), ["quickstart-spare-1"]);
    let ended = RLTrainingJobStatus { completion_time: Some(ago(9)), ..running(1, 60) };
    let settled = with(1, &ended, vec![succeeded(0), waiting(1, 76), spare(0)]);
    assert_eq!(deleted(&settled), ["quickstart-spare-0"], "a pod that waits ends by itself");
}

#[test]
fn spares_are_kept_until_launchers_could_report_to_a_new_leader() {
    let led = |due: Option<u64>, num_spares: u32, workers: Vec<Worker>| {
        let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
        let prepared = match num_spares {
            0 => prepared(2, json!({})),
            num_spares => with_spares(prepared(2, json!({})), num_spares),
        };
        let (launchers_due, status) = (due.map(Duration::from_secs), running(1, 60));
        decide(&ReconcileInput { launchers_due, ..input(&prepared, &status, &workers) })
    };
    let unheard = |worker: Worker| Worker { launcher: None, ..worker };
    let silent = || vec![failed(0, 137, 9), unheard(runs(1)), unheard(spare(0))];
    let waits = led(Some(20), 1, silent());
    assert_eq!((waits.status.attempt, waits.requeue_after), (Some(1), Some(Duration::from_secs(20))));
    assert!(waits.delete.is_empty() && waits.start.is_empty() && waits.status.last_failure.is_none());
    let heard = vec![failed(0, 137, 9), waiting(1, 76), spare(0)];
    let next = led(Some(20), 1, heard);
    assert_eq!((next.status.attempt, next.status.attempt_in_place), (Some(2), true));
    let given_up = led(None, 1, silent());
    assert_eq!((given_up.status.attempt, given_up.status.attempt_in_place), (Some(2), false));
    let without_spares = led(Some(20), 0, vec![failed(0, 137, 9), unheard(runs(1))]);
    assert_eq!(without_spares.status.attempt, Some(2), "no launcher is waited for");
}

fn promoted_spare(worker: u32, pod: &str) -> rlt_api::status::PromotedSpareStatus {
    rlt_api::status::PromotedSpareStatus { worker, pod: pod.to_owned() }
}
