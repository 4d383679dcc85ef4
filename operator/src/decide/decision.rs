//! The decision of a reconcile: what is to be done, and the state of the job.

use std::sync::Arc;
use std::time::Duration;

use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason, Warning};
use rlt_objects::queue::WorkloadAction;
use rlt_objects::worker_id::WorkerId;

/// The actions of a reconcile, in this order: delete, assign, create, write the status.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Pods to delete.
    pub delete: Vec<Deletion>,
    /// The change of the Workload.
    pub queue: Option<WorkloadAction>,
    /// Whether the job's children other than pods have to exist.
    pub needs_children: bool,
    /// Existing pods that become workers of the attempt.
    pub assign: Vec<Assignment>,
    /// The workers to start.
    pub start: Vec<WorkerId>,
    /// Whether the job itself is to be deleted.
    pub delete_job: bool,
    /// The status to write.
    pub status: RLTrainingJobStatus,
    /// The job's state.
    pub state: JobState,
    /// Warnings of the specification during the first attempt, for the Events about its start.
    pub warnings: Vec<Warning>,
    /// The reason why applying the decision failed; `None` before it was applied.
    pub apply_failure: Option<ApplyFailure>,
    /// Time until the next reconcile, if no event requeues the job before.
    pub requeue_after: Option<Duration>,
}

impl Decision {
    /// Whether the decision changes pods, the Workload or the existence of the job.
    pub fn changes_objects(&self) -> bool {
        let changes_pods = !self.delete.is_empty() || !self.assign.is_empty() || !self.start.is_empty();
        changes_pods || self.queue.is_some() || self.delete_job
    }

    /// Returns the time until the next reconcile: the shorter one of `wait` and `requeue_after`.
    pub fn sooner(&self, wait: Duration) -> Duration {
        self.requeue_after.map_or(wait, |own| own.min(wait))
    }
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod, a precondition of the deletion.
    pub uid: Arc<str>,
    /// The grace period in seconds; by default the pod's own.
    pub grace_seconds: Option<u32>,
    /// Node of the pod, if the node is lost: the pod is force-deleted once the API server confirms the loss.
    pub lost_node: Option<Arc<str>>,
}

/// An existing pod and its new group, index and attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod, a precondition of the change.
    pub uid: Arc<str>,
    /// Worker that the pod becomes.
    pub worker: WorkerId,
    /// Attempt to which the pod is assigned.
    pub attempt: u32,
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Pods of the first attempt, or of the first after a suspension, are being started.
    Starting,
    /// All pods are ready or have succeeded.
    Running,
    /// An attempt is over; the next one begins.
    Restarting,
    /// Attempts ended soon after their start; the next one waits this long.
    WaitingToRestart(Duration),
    /// A pod does not start, for this cause and with this message.
    StartDelayed(FailureCause, String),
    /// The claim that workers mount is being deleted, and they cannot start before it is gone; with a
    /// message.
    WaitingForClaim(String),
    /// A pod is being deleted or has to leave its node, and all pods save a checkpoint; with cause and
    /// message.
    Stopping(FailureCause, String),
    /// A pod is deleted but may still run, because its node does not answer.
    Stuck(String),
    /// All pods are being deleted and save a checkpoint.
    Suspending,
    /// The job is suspended by its specification, and no pod is left.
    Suspended,
    /// The job is not admitted by its queue, and no pod is left; with reason and message.
    Queued(Reason, String),
    /// All steps are done.
    Complete,
    /// The job has failed for good, for this cause.
    Failed(FailureCause),
    /// The specification or the namespace's defaults are invalid, or the pods request forbidden privileges.
    Invalid(Reason, String),
}

impl JobState {
    /// Returns the state of a job that has ended, from its status.
    pub(super) fn of_finished(status: &RLTrainingJobStatus) -> Self {
        match &status.last_failure {
            _ if status.is(ConditionType::Complete) => Self::Complete,
            Some(failure) => Self::Failed(failure.cause),
            // A failure in a form that only a later release can read.
            None if status.is(ConditionType::Failed) => Self::Failed(FailureCause::TrainerFailed),
            None => Self::Complete,
        }
    }
}

/// Failure to apply a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// Reason of the conditions.
    pub reason: Reason,
    /// Message of the conditions: the object, and the API server's error.
    pub message: String,
    /// Whether the user has to change something; otherwise a retry may succeed.
    pub needs_action: bool,
}

#[cfg(test)]
mod tests {
    use rlt_api::status::Phase;
    use rlt_objects::job::Job;
    use serde_json::{Value, json};

    use super::super::decide;
    use super::super::fixtures::{input, prepared};
    use super::*;

    /// Returns the decision about a job that failed under a later release, which recorded the failure in this
    /// form.
    fn after_a_rollback(last_failure: Value) -> Decision {
        let failed = json!({
            "type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Drained", "message": "m",
        });
        let status = json!({
            "attempt": 2, "completionTime": "2026-01-01T00:00:00Z", "phase": "Failed", "conditions": [failed],
            "failuresByCause": {"Drained": 1}, "lastFailure": last_failure,
        });
        let job: Job = serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status})).unwrap();
        decide(&input(&prepared(2, json!({})), &job.status.unwrap(), &[]))
    }

    #[test]
    fn a_job_that_failed_for_a_cause_of_a_later_release_stays_failed_after_a_rollback() {
        let time = "2026-01-01T00:00:00Z";
        let failure = json!({"attempt": 2, "cause": "Drained", "message": "m", "advice": "a", "time": time});
        for (last_failure, message) in [(failure, "m; a"), (json!({"aLaterForm": 1}), "the job failed")] {
            let decision = after_a_rollback(last_failure);
            assert_eq!(decision.state, JobState::Failed(FailureCause::TrainerFailed));
            assert_eq!(decision.status.phase, Some(Phase::Failed));
            let mut conditions = decision.status.conditions.iter();
            let failed = conditions.find(|condition| condition.type_ == ConditionType::Failed).unwrap();
            assert_eq!((&*failed.reason, &*failed.message), ("TrainerFailed", message));
        }
    }
}
