//! Decisions about two groups of workers.

use rlt_objects::worker_id::WorkerId;

use super::super::fixtures::with_samplers;
use super::*;

fn sampler(idx: u32, attempt: u32) -> Worker {
    let name = format!("quickstart-sampler-{idx}").into();
    let uid = format!("sampler-{idx}-{attempt}").into();
    Worker { name, uid, group: "sampler".into(), ..worker(idx, attempt) }
}

fn of_two_groups(status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    decide(&input(&with_samplers(prepared(2, json!({})), 2), status, &workers))
}

fn names(ids: &[WorkerId]) -> Vec<String> {
    ids.iter().map(|id| format!("{}-{}", id.group, id.idx)).collect()
}

#[test]
fn workers_of_all_groups_are_started_and_counted_by_group() {
    let begun = of_two_groups(&starting(9), vec![]);
    assert_eq!(names(&begun.start), ["trainer-0", "trainer-1", "sampler-0", "sampler-1"]);
    let groups = &begun.status.worker_groups;
    let counts: Vec<_> = groups.iter().map(|group| (&*group.name, group.desired, group.pending)).collect();
    assert_eq!(counts, [("trainer", 2, 2), ("sampler", 2, 2)]);
    assert_eq!(begun.status.replicas, Some(2), "what `kubectl scale` changes are the workers that train");
    let ready = |idx| Worker { phase: WorkerPhase::Running, is_ready: true, ..sampler(idx, 1) };
    let some = of_two_groups(&starting(9), vec![runs(0), runs(1), ready(1)]);
    assert_eq!((names(&some.start), some.status.ready.as_deref()), (vec!["sampler-0".into()], Some("3/4")));
    assert_eq!(some.state, JobState::Starting);
    let all = of_two_groups(&starting(9), vec![runs(0), runs(1), ready(0), ready(1)]);
    assert_eq!((all.state, all.status.ready.as_deref()), (JobState::Running, Some("4/4")));
}

#[test]
fn a_pod_is_of_its_own_group_whatever_its_index() {
    let ready = |idx| Worker { phase: WorkerPhase::Running, is_ready: true, ..sampler(idx, 1) };
    // The first worker that trains is missing, the first that samples exists and has succeeded.
    let done = Worker { phase: WorkerPhase::Succeeded, ..ready(0) };
    let decision = of_two_groups(&starting(9), vec![done, ready(1), runs(1)]);
    assert_eq!(names(&decision.start), ["trainer-0"]);
    assert_ne!(decision.state, JobState::Complete);
    // The pod of an earlier attempt occupies only the name of its own worker.
    let status = RLTrainingJobStatus { attempt: Some(2), ..starting(9) };
    let left = Worker { is_deleting: true, ..sampler(0, 1) };
    let next = of_two_groups(&status, vec![left]);
    assert_eq!(names(&next.start), ["trainer-0", "trainer-1", "sampler-1"]);
}

#[test]
fn a_failure_in_either_group_ends_the_attempt_and_names_its_pod() {
    let ready = |idx| Worker { phase: WorkerPhase::Running, is_ready: true, ..sampler(idx, 1) };
    let crashed = Worker { phase: WorkerPhase::Failed, exit: Some(exit(139, now().as_second())), ..ready(1) };
    let decision = of_two_groups(&running(1, 60), vec![runs(0), runs(1), ready(0), crashed]);
    let failure = decision.status.last_failure.unwrap();
    assert_eq!(
        (failure.cause, failure.pod.as_deref()),
        (FailureCause::Signalled, Some("quickstart-sampler-1"))
    );
    let deleted = of_two_groups(&running(1, 60), vec![runs(0), runs(1), ready(0)]);
    assert_eq!(deleted.status.last_failure.unwrap().pod.as_deref(), Some("quickstart-sampler-1"));
}
