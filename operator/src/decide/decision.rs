//! The decision of a reconcile: what is to be done, and the state of the job.

use std::sync::Arc;
use std::time::Duration;

use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
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
    /// Whether the job's other children have to exist.
    pub needs_children: bool,
    /// Pods that exist and become workers of the attempt.
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
    /// Whether objects besides the job's children and its status are changed.
    pub fn changes_objects(&self) -> bool {
        let changes_pods = !self.delete.is_empty() || !self.assign.is_empty() || !self.start.is_empty();
        changes_pods || self.queue.is_some() || self.delete_job
    }

    /// Returns the time after which the job is reconciled again: `wait`, or less if the decision says so.
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
    /// Node of the pod, if that is lost: the pod is force-deleted once the API server confirms it.
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
    /// All pods run and are ready.
    Running,
    /// An attempt is over; the next one begins.
    Restarting,
    /// Attempts ended soon after their start; the next one waits this long.
    WaitingToRestart(Duration),
    /// A pod does not start, for this cause and with this message.
    StartDelayed(FailureCause, String),
    /// Workers cannot start before the claim that they mount is gone, which is being deleted.
    WaitingForClaim(String),
    /// A pod is being deleted from outside, and all pods save a checkpoint.
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
    /// The state of a job that has ended.
    pub(super) fn of_finished(status: &RLTrainingJobStatus) -> Self {
        let complete = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Complete);
        match &status.last_failure {
            Some(failure) if complete.is_none_or(|complete| complete.status != ConditionStatus::True) => {
                Self::Failed(failure.cause)
            }
            _ => Self::Complete,
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
