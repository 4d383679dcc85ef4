//! The decision about a job: a pure function of the observed state and the time. Nothing here calls the API
//! server.
//!
//! ```text
//! finished? -> complete? -> past its deadline? -> suspended? -> not admitted? -> attempt failed?
//!           -> create missing pods
//! ```
//! A new attempt, and the end of a job, are written to the status first; pods follow in the next reconcile.
//! An operator that crashes in between never leaves pods of two attempts running.

mod apply_failure;
mod attempt_end;
mod clock;
mod conditions;
mod deadlines;
mod deletion;
mod dispatch;
mod events;
mod exclusion;
mod finished;
mod job_pods;
mod queue;
mod spares;
mod specification;
mod suspension;
mod topology;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::plan::TRAINER_GROUP;
use rlt_api::status::{CheckpointStatus, CommitStatus, Progress, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason, Warning};
use rlt_objects::labels;
use rlt_objects::prepare::Prepared;
use rlt_objects::queue::{Queueing, WorkloadAction};
use rlt_objects::worker::Worker;
use rlt_objects::worker_id::WorkerId;

use crate::nodes::{NodeLabels, NodeStates};
pub use apply_failure::ApplyFailure;
use attempt_end::{evacuation, failure, restarts, retries, success};
pub use conditions::JobState;
pub use dispatch::dispatch;
pub use events::JobEvent;
use failure::AttemptState;
use job_pods::JobPods;
pub use restarts::retries_left;
pub use spares::Assignment;
pub use specification::{Specification, refuse, specification};
use success::Completion;
pub use topology::{nodes_to_read, topology_labels};

/// The input of a decision: everything that it depends on.
#[derive(Clone, Debug)]
pub struct ReconcileInput<'a> {
    /// The specification and its plan.
    pub prepared: &'a Prepared,
    /// The status as last written.
    pub status: &'a RLTrainingJobStatus,
    /// The generation of the specification.
    pub generation: i64,
    /// Whether a GitOps controller would apply the job again after it was deleted.
    pub is_tracked: bool,
    /// The job's pods, of all attempts.
    pub workers: &'a [Arc<Worker>],
    /// The states of their nodes that are known.
    pub nodes: &'a NodeStates,
    /// The labels of the nodes of [`nodes_to_read`], once they were read.
    pub node_labels: Option<&'a NodeLabels>,
    /// The trainer's last report.
    pub report: Option<&'a Report>,
    /// The job's queue and Workload.
    pub queueing: &'a Queueing,
    /// Time of the reconcile.
    pub now: Timestamp,
}

/// The trainer's last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The attempt that reports, from 1.
    pub attempt: u32,
    /// How far the training is.
    pub progress: Option<Progress>,
    /// All complete checkpoints, oldest first; `None` where they are not known.
    pub checkpoints: Option<Vec<CheckpointStatus>>,
    /// Restarts of the attempt's processes within their pod, by cause.
    pub restarts: BTreeMap<FailureCause, u32>,
    /// The commits at which models from the hub were read; empty where they are not known.
    pub commits: Vec<CommitStatus>,
    /// Time since the training was heard to advance, by the operator's monotonic clock; `None` while its rank
    /// is silent.
    pub without_step: Option<Duration>,
}

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
    /// Warnings at the start of the job.
    pub warnings: Vec<Warning>,
    /// The reason why applying the decision failed; `None` before it was applied.
    pub apply_failure: Option<ApplyFailure>,
    /// Time until the next reconcile, if no event requeues the job before.
    pub requeue_after: Option<Duration>,
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

/// Decides about a job.
pub fn decide(input: &ReconcileInput<'_>) -> Decision {
    let reconcile = Reconcile::begin(input);
    let policy = &input.prepared.job.spec().run_policy;
    if reconcile.is_finished() {
        return finished::settle(reconcile);
    }
    match success::completion(&reconcile) {
        Completion::Complete => return finished::complete(reconcile),
        Completion::Completing(wait) => return reconcile.keep(wait),
        Completion::Incomplete => {}
    }
    if reconcile.is_past(policy.active_deadline_seconds) {
        let seconds = policy.active_deadline_seconds.unwrap_or_default();
        let message = format!("the job was active for more than {seconds} s");
        retries::answer(reconcile, failure::Failure::of_job(FailureCause::DeadlineExceeded, message))
    } else if policy.suspend {
        suspension::suspend(reconcile)
    } else if let Some(hold) = queue::hold(&reconcile) {
        queue::wait(reconcile, hold)
    } else if reconcile.status.active_since.is_none() {
        suspension::begin(reconcile)
    } else {
        match failure::attempt_state(&reconcile) {
            AttemptState::Failed(failure) => {
                let failure = evacuation::attribute(&reconcile, failure);
                retries::answer(reconcile, failure)
            }
            AttemptState::CauseUnknown(wait) => reconcile.keep(wait),
            AttemptState::Stopping { cause, message, wait } => {
                reconcile.decide(JobState::Stopping(cause, message), Some(wait))
            }
            AttemptState::Healthy => run(reconcile),
        }
    }
}

impl Decision {
    /// Returns the time after which the job is reconciled again: `wait`, or less if the decision says so.
    pub fn sooner(&self, wait: Duration) -> Duration {
        self.requeue_after.map_or(wait, |own| own.min(wait))
    }

    /// The Events about the change from a status to this one.
    pub fn events(&self, before: &RLTrainingJobStatus) -> Vec<JobEvent> {
        let warnings = self.warnings.iter().map(events::of_warning);
        warnings
            .chain(events::between(before, &self.status, &self.state, self.apply_failure.as_ref()))
            .collect()
    }
}

/// Deletes the pods of earlier attempts and creates those that are missing.
fn run(mut reconcile: Reconcile<'_>) -> Decision {
    let grace = retries::survivors_grace(&reconcile.status);
    let earlier = spares::surplus_of_earlier(&reconcile);
    reconcile.delete = deletion::deletions(&reconcile, earlier.into_iter(), grace);
    reconcile.delete.extend(evacuation::deletions(&reconcile));
    if let Some(wait) = retries::wait_to_start(&reconcile) {
        return reconcile.decide(JobState::WaitingToRestart(wait), Some(wait));
    }
    let may_create_pods = queue::may_create_pods(reconcile.input.queueing);
    deadlines::begin_start(&mut reconcile);
    if may_create_pods && !reconcile.status.attempt_in_place {
        reconcile.start = reconcile.pods.missing();
    }
    reconcile.assign = spares::assignments(&reconcile);
    let state = reconcile.pods.state(&reconcile.status);
    reconcile.delete.extend(spares::deletions(&reconcile, &state));
    if may_create_pods {
        reconcile.start.extend(spares::missing(&reconcile, &state));
    }
    if state == JobState::Running && reconcile.status.attempt_running_time.is_none() {
        reconcile.status.attempt_running_time = Some(clock::rfc3339(reconcile.input.now));
    }
    if let Some(state) = evacuation::begin(&mut reconcile) {
        return reconcile.write_first(state);
    }
    let state = deletion::stuck(&reconcile).or_else(|| deadlines::start_delay(&reconcile)).unwrap_or(state);
    let requeue_after = deadlines::next(&reconcile);
    // The ConfigMap gets this specification before the status is written.
    reconcile.status.accepted = Some(reconcile.input.prepared.accepted.clone());
    let mut decision = reconcile.decide(state, requeue_after);
    decision.needs_children = true;
    decision
}

/// One reconcile: its input, and the decision as far as it is made.
struct Reconcile<'a> {
    input: &'a ReconcileInput<'a>,
    pods: JobPods<'a>,
    status: RLTrainingJobStatus,
    delete: Vec<Deletion>,
    assign: Vec<Assignment>,
    start: Vec<WorkerId>,
}

impl<'a> Reconcile<'a> {
    fn begin(input: &'a ReconcileInput<'a>) -> Self {
        let mut status = input.status.clone();
        status.observed_generation = Some(input.generation);
        let attempt = status.attempt.unwrap_or(1);
        let pods = JobPods::new(input.workers, attempt, &input.prepared.plan);
        let accepted = &input.prepared.accepted;
        if let Some(recorded) = status.accepted.as_mut().filter(|one| one.spec_digest == accepted.spec_digest)
        {
            recorded.generation = accepted.generation;
        }
        status.selector = Some(labels::selector_of_workers(input.prepared.job.name(), TRAINER_GROUP));
        Self { input, pods, status, delete: Vec::new(), assign: Vec::new(), start: Vec::new() }
    }

    fn is_finished(&self) -> bool {
        self.status.completion_time.is_some()
    }

    fn time(&self, text: Option<&str>) -> Option<Timestamp> {
        text.and_then(|text| text.parse().ok())
    }

    fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(1)
    }

    /// Seconds that the job has been active.
    fn active_seconds(&self) -> u64 {
        let now = self.input.now;
        let since = self.time(self.status.active_since.as_deref()).unwrap_or(now);
        self.status.active_seconds.unwrap_or(0) + clock::seconds_between(since, now)
    }

    fn is_past(&self, active_deadline_seconds: Option<u64>) -> bool {
        self.status.attempt.is_some()
            && active_deadline_seconds.is_some_and(|deadline| self.active_seconds() >= deadline)
    }

    /// Changes nothing, and reconciles again after `wait`.
    fn keep(self, wait: Duration) -> Decision {
        let state = self.pods.state(&self.status);
        self.decide(state, Some(wait))
    }

    /// Writes the status only; pods follow in the next reconcile.
    fn write_first(self, state: JobState) -> Decision {
        let mut decision = self.decide(state, Some(Duration::ZERO));
        decision.delete.clear();
        decision.assign.clear();
        decision
    }

    fn decide(mut self, state: JobState, requeue_after: Option<Duration>) -> Decision {
        if !self.is_finished() || self.input.status.completion_time.is_none() {
            let topologies = topology::topologies(&self);
            self.pods.count(&self.start, &mut self.status);
            for (group, topology) in self.status.worker_groups.iter_mut().zip(topologies) {
                group.topology = topology;
            }
            self.take_report();
            self.status.resolved = Some(self.input.prepared.resolved_numbers());
        } else if self.status.progress.is_none() && self.reported_progress().is_some() {
            // Workers that find a finished run may end before their only report is received. Once it is in
            // the status, nothing that is reported later changes the end.
            self.take_progress();
        }
        self.status.queue.clone_from(&self.input.queueing.queue);
        conditions::write(&mut self.status, &state, None, self.input.now);
        let warnings = self.warnings_at_start();
        Decision {
            queue: queue::action(&self, &state),
            delete: self.delete,
            needs_children: false,
            assign: self.assign,
            start: self.start,
            delete_job: false,
            warnings,
            status: self.status,
            state,
            apply_failure: None,
            requeue_after,
        }
    }

    /// The warnings, if this is the first status with an attempt.
    fn warnings_at_start(&self) -> Vec<Warning> {
        match (self.input.status.attempt, self.status.attempt) {
            (None, Some(_)) => self.input.prepared.job.warnings(),
            _ => Vec::new(),
        }
    }

    /// Takes progress, checkpoints and restarts from the trainer's report. Of a report of an earlier attempt
    /// only the checkpoints count, which are still there.
    fn take_report(&mut self) {
        self.take_progress();
        restarts::count(self);
    }

    fn take_progress(&mut self) {
        let Some(report) = self.input.report else { return };
        if let Some(checkpoints) = &report.checkpoints {
            self.status.checkpoints.clone_from(checkpoints);
        }
        if !report.commits.is_empty() {
            self.status.commits.clone_from(&report.commits);
        }
        if let Some(progress) = self.reported_progress() {
            self.status.progress = Some(progress.clone());
        }
    }

    /// The progress of this attempt, if it was reported.
    fn reported_progress(&self) -> Option<&'a Progress> {
        let report = self.input.report.filter(|report| report.attempt == self.attempt())?;
        report.progress.as_ref()
    }
}

/// The cause of the end of a finished job.
fn cause_of(status: &RLTrainingJobStatus) -> Reason {
    status.last_failure.as_ref().map_or(Reason::StepsFinished, |failure| Reason::Failure(failure.cause))
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_spares;
#[cfg(test)]
mod tests;
