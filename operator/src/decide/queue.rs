//! Admission by Kueue, and changes of the Workload. An eviction is no failure: pods save a checkpoint, and
//! the job resumes from it when it is admitted again.

pub(super) mod dispatch;
pub(super) mod exclusion;

use std::sync::Arc;

use rlt_api::Reason;
use rlt_objects::queue::{GiveBack, Queueing, Workload, WorkloadAction};

use super::{JobState, Reconcile};

/// Returns the state of a job that has to wait for its queue; `None` if it may run. A Workload that cannot be
/// read is no eviction: existing pods stay, and [`may_create_pods`] prevents new ones.
pub(super) fn hold(reconcile: &Reconcile<'_>) -> Option<JobState> {
    let queueing = reconcile.input.queueing;
    let queue = queueing.queue.as_ref()?;
    if !queueing.is_served {
        let message = format!("waits for queue {queue}, but the cluster has no Kueue that serves v1beta2");
        return Some(JobState::Queued(Reason::QueueMissing, message));
    }
    let waits = |why: &str| Some(JobState::Queued(Reason::Queued, format!("waits in queue {queue}{why}")));
    let Some(workload) = &queueing.workload else { return waits("") };
    if let Some(error) = &workload.unreadable {
        let has_pods = reconcile.pods.all().next().is_some();
        let wait = || waits(&format!(", but the status of its Workload cannot be read: {error}"));
        return if has_pods { None } else { wait() };
    }
    match &workload.eviction {
        _ if workload.is_deleting || workload.is_finished => waits(""),
        Some(eviction) if workload.has_quota => {
            waits(&format!(", which took its place back: {}: {}", eviction.reason, eviction.message))
        }
        _ if leaves_place(reconcile) => {
            let nodes = exclusion::nodes_of_place(reconcile).join(", ");
            waits(&format!(", whose place it gives back: its workers failed on {nodes}"))
        }
        _ if workload.is_admitted && workload.has_quota => None,
        _ if workload.excluded_nodes.is_empty() && workload.waiting.is_empty() => waits(""),
        _ if workload.excluded_nodes.is_empty() => waits(&format!(": {}", workload.waiting)),
        _ => {
            let nodes: Vec<_> = workload.excluded_nodes.iter().map(String::as_str).collect();
            let without = format!(" for a place without {}, where its workers failed", nodes.join(", "));
            let separator = if workload.waiting.is_empty() { "" } else { ": " };
            waits(&format!("{without}{separator}{}", workload.waiting))
        }
    }
}

/// Whether a job that runs no attempt gives its quota back, because Kueue may have assigned an excluded node
/// to it. An attempt in place keeps the quota.
pub(super) fn leaves_place(reconcile: &Reconcile<'_>) -> bool {
    reconcile.status.active_since.is_none() && !exclusion::nodes_of_place(reconcile).is_empty()
}

/// Whether pods may be created. They may not while the Workload's status, which determines their nodes,
/// cannot be read.
pub(super) fn may_create_pods(queueing: &Queueing) -> bool {
    let workload = queueing.workload.as_ref().filter(|_| queueing.queue.is_some());
    workload.is_none_or(|workload| workload.unreadable.is_none())
}

/// Returns the change of the Workload that the state of the job requires, if any.
pub(super) fn action(reconcile: &Reconcile<'_>, state: &JobState) -> Option<WorkloadAction> {
    let queueing = reconcile.input.queueing;
    let is_empty = reconcile.pods.all().next().is_none();
    let workload = queueing.workload.as_ref();
    let Some(workload) = workload else {
        let waits = matches!(state, JobState::Queued(Reason::Queued, _)) && queueing.queue.is_some();
        return (waits && is_empty).then_some(WorkloadAction::Create);
    };
    if workload.is_deleting {
        return None;
    }
    let workload = workload.clone();
    match state {
        // `Finished` is set once the end of the job is in its status.
        JobState::Complete | JobState::Failed(_) => {
            let stands = reconcile.input.status.completion_time.is_some() && !workload.is_finished;
            let has_succeeded = *state == JobState::Complete;
            let message = match &reconcile.status.last_failure {
                Some(failure) if !has_succeeded => failure.message.clone(),
                _ => "all steps are done".to_owned(),
            };
            stands.then_some(WorkloadAction::Finish(workload, has_succeeded, message))
        }
        JobState::Suspended => Some(delete(workload)),
        JobState::Invalid(..) => None,
        // The Workload's status is not known, so nothing can be changed.
        _ if workload.unreadable.is_some() => None,
        _ if queueing.queue.is_none() => Some(delete(workload)),
        JobState::Queued(..) if !is_empty => None,
        JobState::Queued(..) if leaves_place(reconcile) => Some(delete(workload)),
        JobState::Queued(..) if is_outdated(queueing, &workload) => Some(delete(workload)),
        JobState::Queued(..) => {
            (workload.eviction.is_some() && workload.has_quota).then(|| release(workload))
        }
        JobState::Running => (!workload.is_ready).then_some(WorkloadAction::SetPodsReady(workload, true)),
        JobState::Restarting => workload.is_ready.then_some(WorkloadAction::SetPodsReady(workload, false)),
        _ => None,
    }
}

/// Returns the change that deletes the Workload.
fn delete(workload: Arc<Workload>) -> WorkloadAction {
    WorkloadAction::GiveBack(GiveBack::Delete(workload))
}

/// Returns the change that releases the quota of the Workload.
fn release(workload: Arc<Workload>) -> WorkloadAction {
    WorkloadAction::GiveBack(GiveBack::Release(workload))
}

/// Returns the change that gives back the quota of a refused job without pods, which cannot use it. A job
/// that still waits for quota keeps its Workload and its turn. A Workload that another client created is
/// never deleted; its quota is released after an eviction.
pub fn unused_place(queueing: &Queueing) -> Option<GiveBack> {
    let workload = queueing.workload.as_ref().filter(|_| queueing.is_served)?;
    let is_reserved = workload.has_quota && !workload.is_deleting && !workload.is_finished;
    match (is_reserved, &queueing.prebuilt) {
        (true, None) => Some(GiveBack::Delete(workload.clone())),
        (true, Some(_)) if workload.eviction.is_some() => Some(GiveBack::Release(workload.clone())),
        _ => None,
    }
}

/// Whether the Workload must be replaced: the job's pod sets have changed since it was created, or it is
/// finished. Reserved quota is not released for that, and a Workload that another client created is replaced
/// by that client.
pub(super) fn is_outdated(queueing: &Queueing, workload: &Workload) -> bool {
    let is_prebuilt = queueing.prebuilt.is_some();
    !is_prebuilt && (workload.is_finished || !workload.has_quota && workload.digest != queueing.wanted)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::SignedDuration;
    use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
    use rlt_objects::worker::{Explanation, Worker, WorkerPhase};
    use serde_json::json;

    use super::super::fixtures::{asked, indices, input, now, prepared, waiting, worker};
    use super::super::suspension::REQUEUE_WITHOUT_KUEUE;
    use super::super::{Decision, ReconcileInput, decide};
    use super::*;
    use crate::nodes::{NodeState, NodeStates};

    fn admitted() -> Workload {
        Workload { has_quota: true, is_admitted: true, ..waiting() }
    }

    fn evicted() -> Workload {
        let eviction = Explanation { reason: "Preempted".into(), message: "for another".into() };
        Workload { eviction: Some(eviction), ..admitted() }
    }

    fn decided(
        queueing: &Queueing,
        policy: serde_json::Value,
        status: &RLTrainingJobStatus,
        workers: Vec<Worker>,
    ) -> Decision {
        on_nodes(&NodeStates::new(), queueing, policy, status, workers)
    }

    fn on_nodes(
        nodes: &NodeStates,
        queueing: &Queueing,
        policy: serde_json::Value,
        status: &RLTrainingJobStatus,
        workers: Vec<Worker>,
    ) -> Decision {
        let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
        decide(&ReconcileInput { nodes, queueing, ..input(&prepared(2, policy), status, &workers) })
    }

    fn running() -> RLTrainingJobStatus {
        let since = "2027-01-15T07:00:00Z".to_owned();
        RLTrainingJobStatus {
            attempt: Some(1),
            active_since: Some(since.clone()),
            attempt_start_time: Some(since.clone()),
            attempt_running_time: Some(since),
            ..RLTrainingJobStatus::default()
        }
    }

    fn starting() -> RLTrainingJobStatus {
        RLTrainingJobStatus { attempt_running_time: None, ..running() }
    }

    /// Returns the status of a job whose attempt was stopped without a failure.
    fn stopping() -> RLTrainingJobStatus {
        RLTrainingJobStatus { active_since: None, ..running() }
    }

    fn runs(idx: u32) -> Worker {
        Worker { phase: WorkerPhase::Running, is_ready: true, ..worker(idx, 1) }
    }

    fn condition(decision: &Decision, type_: ConditionType) -> (ConditionStatus, &str) {
        let condition = decision.status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
        (condition.status, &condition.reason)
    }

    #[test]
    fn a_job_asks_its_queue_first_and_starts_nothing_before_it_is_let_in() {
        let nothing = RLTrainingJobStatus::default();
        let decision = decided(&asked(None), json!({}), &nothing, vec![]);
        assert_eq!((decision.queue.clone(), decision.start.len()), (Some(WorkloadAction::Create), 0));
        assert_eq!(condition(&decision, ConditionType::Suspended), (ConditionStatus::True, "Queued"));
        assert_eq!(condition(&decision, ConditionType::Admitted), (ConditionStatus::False, "Queued"));
        assert_eq!((decision.status.queue.as_deref(), decision.status.attempt), (Some("team"), None));
        let decision = decided(&asked(Some(waiting())), json!({}), &nothing, vec![]);
        assert_eq!((decision.queue.clone(), decision.start.len()), (None, 0));
        let decision = decided(&asked(Some(admitted())), json!({}), &nothing, vec![]);
        assert_eq!((decision.queue.clone(), indices(&decision.start)), (None, vec![0, 1]));
        assert_eq!(condition(&decision, ConditionType::Admitted), (ConditionStatus::True, "Admitted"));
    }

    #[test]
    fn a_job_with_a_queue_waits_on_a_cluster_without_kueue_and_reports_it() {
        let missing = Queueing { is_served: false, ..asked(None) };
        let decision = decided(&missing, json!({}), &RLTrainingJobStatus::default(), vec![]);
        assert_eq!((decision.queue.clone(), decision.start.len()), (None, 0));
        assert_eq!(condition(&decision, ConditionType::Admitted), (ConditionStatus::False, "QueueMissing"));
        assert_eq!(decision.requeue_after, Some(REQUEUE_WITHOUT_KUEUE));
    }

    #[test]
    fn an_eviction_stops_all_workers_and_gives_the_place_back_only_when_none_is_left() {
        let decision = decided(&asked(Some(evicted())), json!({}), &running(), vec![runs(0), runs(1)]);
        assert_eq!((decision.delete.len(), decision.queue.clone()), (0, None), "the status is written first");
        assert_eq!(decision.requeue_after, Some(Duration::ZERO));
        let decision = decided(&asked(Some(evicted())), json!({}), &decision.status, vec![runs(0), runs(1)]);
        assert_eq!((decision.delete.len(), decision.queue.clone()), (2, None));
        assert!(
            decision.delete.iter().all(|deletion| deletion.grace_seconds.is_none()),
            "time for a checkpoint"
        );
        assert_eq!(condition(&decision, ConditionType::Reconciling), (ConditionStatus::True, "Suspending"));
        let leaving = Worker { is_deleting: true, ..runs(1) };
        let decision = decided(&asked(Some(evicted())), json!({}), &stopping(), vec![leaving]);
        assert_eq!((decision.delete.len(), decision.queue), (0, None));
        let decision = decided(&asked(Some(evicted())), json!({}), &running(), vec![]);
        assert_eq!(decision.queue, Some(release(Arc::new(evicted()))));
        assert!(decision.status.failures_by_cause.is_empty(), "to be sent away is no failure");
        let status = decision.status;
        let decision = decided(&asked(Some(admitted())), json!({}), &status, vec![]);
        assert_eq!(decision.status.attempt, Some(2), "let in again, it begins the next attempt");
    }

    #[test]
    fn an_eviction_force_deletes_workers_of_lost_nodes_and_keeps_quota_for_those_that_may_still_run() {
        let node: Arc<str> = "node".into();
        let leaving = |seconds| Worker {
            node: Some(node.clone()),
            is_deleting: true,
            leaves_by: Some(now() + SignedDuration::from_secs(seconds)),
            ..runs(0)
        };
        let on = |state, worker| {
            on_nodes(
                &[(node.clone(), state)].into(),
                &asked(Some(evicted())),
                json!({}),
                &stopping(),
                vec![worker],
            )
        };
        let decision = on(NodeState::Lost, leaving(20));
        assert_eq!(
            (decision.delete[0].lost_node.as_ref(), decision.delete[0].grace_seconds),
            (Some(&node), Some(0))
        );
        let decision = on(NodeState::Silent, leaving(20));
        assert_eq!((decision.queue, decision.requeue_after), (None, Some(Duration::from_secs(20))));
        let decision = on(NodeState::Silent, leaving(-1));
        assert_eq!(condition(&decision, ConditionType::Stalled), (ConditionStatus::True, "NodeUnreachable"));
        assert_eq!((decision.delete.len(), decision.queue), (0, None));
    }

    #[test]
    fn a_workload_that_cannot_be_read_neither_stops_workers_nor_starts_any() {
        let unreadable = Workload { unreadable: Some("no sequence".into()), ..waiting() };
        let queueing = asked(Some(unreadable));
        let decision = decided(&queueing, json!({}), &running(), vec![runs(0), runs(1)]);
        assert!(decision.delete.is_empty() && decision.queue.is_none());
        assert_eq!(condition(&decision, ConditionType::PodsReady).0, ConditionStatus::True);
        // One pod of a starting gang exists; the other pod waits for the topology assignment.
        let decision = decided(&queueing, json!({}), &starting(), vec![worker(0, 1)]);
        assert!(decision.delete.is_empty() && decision.start.is_empty());
        let decision = decided(&queueing, json!({}), &RLTrainingJobStatus::default(), vec![]);
        assert!(decision.start.is_empty() && decision.queue.is_none());
        assert_eq!(condition(&decision, ConditionType::Suspended), (ConditionStatus::True, "Queued"));
    }

    #[test]
    fn a_job_whose_workload_somebody_deletes_stops_and_asks_again_once_no_worker_is_left() {
        let queue = |workers: Vec<Worker>| {
            let decision = decided(&asked(None), json!({}), &running(), workers);
            assert!(decision.start.is_empty(), "{decision:?}");
            decision.queue
        };
        assert_eq!(queue(vec![runs(0), runs(1)]), None);
        assert_eq!(queue(vec![Worker { is_deleting: true, ..runs(1) }]), None);
        assert_eq!(queue(vec![]), Some(WorkloadAction::Create));
    }

    #[test]
    fn a_refused_job_gives_back_a_place_that_it_cannot_use_and_keeps_its_turn() {
        let delete = Some(GiveBack::Delete(Arc::new(admitted())));
        assert_eq!(unused_place(&asked(Some(admitted()))), delete);
        let finished = Workload { is_finished: true, ..admitted() };
        for workload in [None, Some(waiting()), Some(finished)] {
            assert_eq!(unused_place(&asked(workload)), None);
        }
        let prebuilt = |workload| Queueing { prebuilt: Some("w".into()), ..asked(Some(workload)) };
        assert_eq!(unused_place(&prebuilt(admitted())), None);
        let release = Some(GiveBack::Release(Arc::new(evicted())));
        assert_eq!(unused_place(&prebuilt(evicted())), release);
    }

    #[test]
    fn a_suspended_job_and_one_without_a_queue_release_their_workload() {
        let suspend = json!({"suspend": true});
        let queueing = asked(Some(admitted()));
        let decision = decided(&queueing, suspend.clone(), &running(), vec![runs(0), runs(1)]);
        assert_eq!(decision.queue, None);
        let decision = decided(&queueing, suspend, &running(), vec![]);
        assert_eq!(decision.queue, Some(delete(Arc::new(admitted()))));
        let left = Queueing { queue: None, requested: None, ..asked(Some(waiting())) };
        let decision = decided(&left, json!({}), &running(), vec![runs(0), runs(1)]);
        assert_eq!(decision.queue, Some(delete(Arc::new(waiting()))));
        assert!(decision.delete.is_empty());
    }

    #[test]
    fn an_admitted_job_whose_label_changes_stays_in_its_queue_says_so_and_moves_once_it_is_suspended() {
        let of_queue = || Workload { queue: "team".into(), ..admitted() };
        for (label, named) in [(Some("other"), "queue other"), (None, "no queue")] {
            let observed = |workload: Workload| Queueing {
                queue: rlt_objects::queue::queue_of(label, Some(&workload)),
                requested: label.map(str::to_owned),
                wanted: Some("of another queue".into()),
                ..asked(Some(workload))
            };
            let queueing = observed(of_queue());
            let decision = decided(&queueing, json!({}), &running(), vec![runs(0), runs(1)]);
            let decision = decision.noting_request(&queueing);
            assert!(
                decision.delete.is_empty() && !matches!(decision.queue, Some(WorkloadAction::GiveBack(_)))
            );
            assert_eq!(decision.status.queue.as_deref(), Some("team"));
            let condition =
                decision.status.conditions.iter().find(|one| one.type_ == ConditionType::Admitted);
            let message = &condition.unwrap().message;
            assert!(message.contains("queue team") && message.contains(named), "{message}");
            let suspended = decided(&queueing, json!({"suspend": true}), &stopping(), vec![]);
            assert_eq!(suspended.queue, Some(delete(Arc::new(of_queue()))));
            let released = Workload { has_quota: false, ..of_queue() };
            let evicted = decided(&observed(released.clone()), json!({}), &stopping(), vec![]);
            assert_eq!(evicted.queue, Some(delete(Arc::new(released))), "{label:?}");
        }
    }

    #[test]
    fn a_workload_follows_its_job_while_it_waits_and_never_while_it_is_admitted() {
        let other = |workload| Queueing { wanted: Some("other".into()), ..asked(Some(workload)) };
        let nothing = RLTrainingJobStatus::default();
        let decision = decided(&other(waiting()), json!({}), &nothing, vec![]);
        assert_eq!(decision.queue, Some(delete(Arc::new(waiting()))));
        let decision = decided(&other(admitted()), json!({}), &running(), vec![runs(0), runs(1)]);
        assert!(decision.delete.is_empty() && !matches!(decision.queue, Some(WorkloadAction::GiveBack(_))));
    }

    #[test]
    fn the_queue_hears_when_all_run_and_of_the_end_once_that_is_written() {
        let ready = Workload { is_ready: true, ..admitted() };
        let both = vec![runs(0), runs(1)];
        let decision = decided(&asked(Some(admitted())), json!({}), &running(), both.clone());
        assert_eq!(decision.queue, Some(WorkloadAction::SetPodsReady(Arc::new(admitted()), true)));
        let decision = decided(&asked(Some(ready.clone())), json!({}), &running(), both);
        assert_eq!(decision.queue, None);
        let ended = |idx| Worker { phase: WorkerPhase::Succeeded, ..runs(idx) };
        let queueing = asked(Some(ready.clone()));
        let decision = decided(&queueing, json!({}), &running(), vec![ended(0), ended(1)]);
        assert_eq!(decision.queue, None);
        let decision = decided(&queueing, json!({}), &decision.status, vec![ended(0), ended(1)]);
        let finish = WorkloadAction::Finish(Arc::new(ready), true, "all steps are done".into());
        assert_eq!(decision.queue, Some(finish));
    }
}
