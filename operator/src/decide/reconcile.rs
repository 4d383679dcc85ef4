//! One reconcile of a job: the input of its decision, and the parts of the decision that are made so far.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::FailureCause;
use rlt_api::status::{CheckpointStatus, CommitStatus, Progress, RLTrainingJobStatus};
use rlt_channel::limits::MAX_CHECKPOINTS;
use rlt_objects::labels;
use rlt_objects::prepare::Prepared;
use rlt_objects::queue::Queueing;
use rlt_objects::worker::Worker;
use rlt_objects::worker_id::WorkerId;
use rlt_plan::TRAINER_GROUP;

use super::job_pods::JobPods;
use super::{Assignment, Deletion, clock};
use crate::nodes::{NodeLabels, NodeStates};

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
    /// Whether MultiKueue created the job as a copy, which MultiKueue deletes itself.
    pub is_copy: bool,
    /// The job's pods, of all attempts.
    pub workers: &'a [Arc<Worker>],
    /// Known states of the pods' nodes.
    pub nodes: &'a NodeStates,
    /// The labels of the nodes of [`nodes_to_read`](super::nodes_to_read), once they were read.
    pub node_labels: Option<&'a NodeLabels>,
    /// The trainer's last report.
    pub report: Option<&'a Report>,
    /// Time that launchers of pods have left to report to this operator for the first time; `None` once it is
    /// over. A new leader has received no report of any launcher.
    pub launchers_due: Option<Duration>,
    /// Name of the claim that the pods mount, while that is being deleted; `None` otherwise.
    pub deleting_claim: Option<&'a str>,
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
    /// Progress of the training.
    pub progress: Option<Progress>,
    /// Complete checkpoints, oldest first; `None` if the trainer does not know them yet.
    pub checkpoints: Option<Vec<CheckpointStatus>>,
    /// Steps of further checkpoints, which are complete too and had no room in the report.
    pub left_out: Vec<u64>,
    /// Restarts of the attempt's processes within their pod, by cause.
    pub restarts: BTreeMap<FailureCause, u32>,
    /// The commits at which models from the hub were read; empty if they are not known.
    pub commits: Vec<CommitStatus>,
    /// Time since the last report by which the training advanced, by the operator's monotonic clock; `None`
    /// while rank 0 is silent.
    pub without_step: Option<Duration>,
}

impl Report {
    /// Returns all complete checkpoints, oldest first: those of the report, and those of the `earlier` list
    /// for which the report had no room. `None` if the report does not know the checkpoints.
    pub fn checkpoints_with(&self, earlier: &[CheckpointStatus]) -> Option<Vec<CheckpointStatus>> {
        let mut all = self.checkpoints.clone()?;
        let is_listed = |step| self.checkpoints.iter().flatten().any(|listed| listed.step == step);
        let is_further = |one: &&CheckpointStatus| self.left_out.contains(&one.step) && !is_listed(one.step);
        let further = earlier.iter().filter(is_further);
        all.extend(further.map(|one| CheckpointStatus { latest: false, ..one.clone() }));
        all.sort_by_key(|one| one.step);
        // The API server refuses a status with more.
        all.drain(..all.len().saturating_sub(MAX_CHECKPOINTS));
        Some(all)
    }
}

/// One reconcile: its input, and the parts of the decision that are made so far.
pub(super) struct Reconcile<'a> {
    pub(super) input: &'a ReconcileInput<'a>,
    pub(super) pods: JobPods<'a>,
    pub(super) status: RLTrainingJobStatus,
    pub(super) delete: Vec<Deletion>,
    pub(super) assign: Vec<Assignment>,
    pub(super) start: Vec<WorkerId>,
}

impl<'a> Reconcile<'a> {
    pub(super) fn begin(input: &'a ReconcileInput<'a>) -> Self {
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

    pub(super) fn is_finished(&self) -> bool {
        self.status.completion_time.is_some()
    }

    pub(super) fn time(&self, text: Option<&str>) -> Option<Timestamp> {
        text.and_then(|text| text.parse().ok())
    }

    pub(super) fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(1)
    }

    /// Returns the seconds for which the job has been active.
    pub(super) fn active_seconds(&self) -> u64 {
        let now = self.input.now;
        let since = self.time(self.status.active_since.as_deref()).unwrap_or(now);
        self.status.active_seconds.unwrap_or(0) + clock::seconds_between(since, now)
    }

    pub(super) fn is_past(&self, active_deadline_seconds: Option<u64>) -> bool {
        self.status.attempt.is_some()
            && active_deadline_seconds.is_some_and(|deadline| self.active_seconds() >= deadline)
    }
}
