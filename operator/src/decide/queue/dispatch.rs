//! Jobs in the manager cluster of MultiKueue, which run in another cluster: the operator keeps the job's
//! Workload up to date, as Kueue does for its built-in kinds. MultiKueue copies the status.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::spec::RunPolicySpec;
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::queue::{Queueing, WorkloadAction};

use super::super::finished;
use super::{delete, is_outdated, release};

/// Returns the change of the Workload of a job that MultiKueue manages. MultiKueue removes the job from the
/// other cluster once its Workload here is deleted or has no quota; it sets `Finished` itself.
pub fn dispatch(
    queueing: &Queueing,
    status: &RLTrainingJobStatus,
    is_suspended: bool,
) -> Option<WorkloadAction> {
    if !queueing.is_served || status.completion_time.is_some() {
        return None;
    }
    let wants_place = queueing.queue.is_some() && !is_suspended;
    let Some(workload) = &queueing.workload else {
        return wants_place.then_some(WorkloadAction::Create);
    };
    if workload.is_deleting || workload.is_finished {
        return None;
    }
    if !wants_place {
        return Some(delete(workload.clone()));
    }
    if workload.unreadable.is_some() {
        return None;
    }
    if is_outdated(queueing, workload) {
        return Some(delete(workload.clone()));
    }
    (workload.eviction.is_some() && workload.has_quota).then(|| release(workload.clone()))
}

/// Returns the time until a job that MultiKueue manages is to be deleted; `None` if it is kept. It is kept
/// until MultiKueue has copied the last status and then finished the Workload.
pub fn time_to_live(
    queueing: &Queueing,
    status: &RLTrainingJobStatus,
    policy: &RunPolicySpec,
    is_tracked: bool,
    now: Timestamp,
) -> Option<Duration> {
    let ended = status.completion_time.as_ref()?.parse().ok()?;
    let is_finished = queueing.workload.as_ref().is_none_or(|workload| workload.is_finished);
    let may_be_deleted = is_finished && !finished::keeps_tracked(policy, is_tracked);
    let left = may_be_deleted.then(|| finished::seconds_left(policy, ended, now)).flatten();
    left.map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rlt_api::spec::TtlPolicy;
    use rlt_objects::queue::{NO_QUEUE, Workload};
    use rlt_objects::worker::Explanation;

    use super::*;
    use crate::decide::fixtures::{asked, now, waiting};

    fn action(queueing: &Queueing) -> Option<WorkloadAction> {
        dispatch(queueing, &RLTrainingJobStatus::default(), false)
    }

    #[test]
    fn a_job_of_another_cluster_asks_its_queue_here_and_gives_its_place_back() {
        assert_eq!(action(&asked(None)), Some(WorkloadAction::Create));
        assert_eq!(action(&asked(Some(waiting()))), None);
        let admitted = Workload { has_quota: true, is_admitted: true, digest: None, ..waiting() };
        assert_eq!(action(&asked(Some(admitted.clone()))), None, "reserved quota is kept");
        let eviction = Some(Explanation { reason: "Preempted".into(), message: String::new() });
        let evicted = Workload { eviction, ..admitted };
        assert_eq!(action(&asked(Some(evicted.clone()))), Some(release(Arc::new(evicted))));
        let outdated = Workload { digest: None, ..waiting() };
        assert_eq!(action(&asked(Some(outdated.clone()))), Some(delete(Arc::new(outdated))));
        let unserved = Queueing { is_served: false, ..asked(None) };
        assert_eq!((action(&unserved), action(&NO_QUEUE)), (None, None));
    }

    #[test]
    fn a_suspended_job_gives_its_workload_up_and_a_finished_one_asks_for_none() {
        let suspended = |queueing: &Queueing| dispatch(queueing, &RLTrainingJobStatus::default(), true);
        assert_eq!(suspended(&asked(None)), None);
        let delete = Some(delete(Arc::new(waiting())));
        assert_eq!(suspended(&asked(Some(waiting()))), delete);
        assert_eq!(action(&Queueing { queue: None, ..asked(Some(waiting())) }), delete);
        // The Workload is finished by MultiKueue shortly before or after it copies the last status.
        let finished = Workload { is_finished: true, ..waiting() };
        assert_eq!(action(&asked(Some(finished))), None);
        let time = Some("2027-01-15T07:00:00Z".to_owned());
        let ended = RLTrainingJobStatus { completion_time: time, ..RLTrainingJobStatus::default() };
        assert_eq!(dispatch(&asked(None), &ended, false), None);
    }

    #[test]
    fn a_job_of_another_cluster_is_deleted_after_its_ttl_once_its_status_is_copied_and_its_workload_finished()
    {
        let policy = |ttl| RunPolicySpec { ttl_seconds_after_finished: ttl, ..RunPolicySpec::default() };
        let running = RLTrainingJobStatus::default();
        let completion_time = Some((now() - Duration::from_secs(60)).to_string());
        let ended = RLTrainingJobStatus { completion_time, ..RLTrainingJobStatus::default() };
        let finished = asked(Some(Workload { is_finished: true, ..waiting() }));
        let left = |queueing: &Queueing, status: &RLTrainingJobStatus, ttl| {
            time_to_live(queueing, status, &policy(ttl), false, now())
        };
        assert_eq!(left(&finished, &running, Some(0)), None, "its last status is yet to be copied");
        assert_eq!(left(&asked(Some(waiting())), &ended, Some(0)), None, "its end is yet to be noted");
        assert_eq!(left(&finished, &ended, Some(0)), Some(Duration::ZERO));
        assert_eq!(left(&asked(None), &ended, Some(0)), Some(Duration::ZERO));
        assert_eq!(left(&finished, &ended, Some(70)), Some(Duration::from_secs(10)));
        assert_eq!(left(&finished, &ended, None), None);
        let tracked = |ttl_policy| {
            let policy = RunPolicySpec { ttl_policy, ..policy(Some(0)) };
            time_to_live(&finished, &ended, &policy, true, now())
        };
        assert_eq!(tracked(TtlPolicy::KeepTracked), None);
        assert_eq!(tracked(TtlPolicy::Delete), Some(Duration::ZERO));
    }
}
