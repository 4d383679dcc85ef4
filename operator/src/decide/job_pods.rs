//! The pods of a job: those of this attempt by their index, and those of earlier attempts.

use std::sync::Arc;

use rlt_api::plan::Plan;
use rlt_api::status::{RLTrainingJobStatus, WorkerGroupStatus};

use super::JobState;
use crate::worker::{Worker, WorkerPhase};

/// The pods of a job.
pub(super) struct JobPods<'a> {
    /// The name of the group.
    group: String,
    /// The pods of this attempt by their index; `None` where there is none.
    pub(super) current: Vec<Option<&'a Worker>>,
    /// The pods of other attempts, and those whose index the plan does not have.
    pub(super) previous: Vec<&'a Worker>,
}

impl<'a> JobPods<'a> {
    pub(super) fn new(workers: &'a [Arc<Worker>], attempt: u32, plan: &Plan) -> Self {
        let group = plan.worker_groups.first();
        let num_workers = group.map_or(0, |group| group.num_workers);
        let mut current = vec![None; num_workers as usize];
        let mut previous = Vec::new();
        for worker in workers {
            match current.get_mut(worker.idx as usize) {
                Some(place) if worker.attempt == attempt => *place = Some(worker.as_ref()),
                _ => previous.push(worker.as_ref()),
            }
        }
        let group = group.map(|group| group.name.clone()).unwrap_or_default();
        Self { group, current, previous }
    }

    /// The name of the group.
    pub(super) fn group(&self) -> &str {
        &self.group
    }

    pub(super) fn present(&self) -> impl Iterator<Item = &'a Worker> {
        self.current.iter().flatten().copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'a Worker> {
        self.present().chain(self.previous.iter().copied())
    }

    /// Indices without a pod of any attempt: only these names are free.
    pub(super) fn missing(&self) -> Vec<u32> {
        let is_taken = |idx: u32| self.previous.iter().any(|worker| worker.idx == idx);
        let indices = (0..).zip(&self.current).filter(|(_, place)| place.is_none()).map(|(idx, _)| idx);
        indices.filter(|idx| !is_taken(*idx)).collect()
    }

    /// The state of an attempt without a failure.
    pub(super) fn state(&self, status: &RLTrainingJobStatus) -> JobState {
        let is_in_place = |place: &Option<&Worker>| place.is_some_and(Worker::is_in_place);
        if self.current.iter().all(is_in_place) {
            JobState::Running
        } else if status.attempt.unwrap_or(1) > 1 && status.attempt_running_time.is_none() {
            JobState::Restarting
        } else {
            JobState::Starting
        }
    }

    /// Counts the pods into the status, including those that are about to be created.
    pub(super) fn count(&self, num_made: usize, status: &mut RLTrainingJobStatus) {
        let mut group = WorkerGroupStatus {
            name: self.group.clone(),
            desired: self.current.len() as u32,
            pending: num_made as u32,
            ..WorkerGroupStatus::default()
        };
        for worker in self.present().filter(|worker| !worker.is_deleting || worker.is_finished()) {
            match worker.phase {
                WorkerPhase::Pending => group.pending += 1,
                WorkerPhase::Running => group.running += 1,
                WorkerPhase::Succeeded => group.succeeded += 1,
                WorkerPhase::Failed => group.failed += 1,
            }
            group.ready += u32::from(worker.is_in_place());
        }
        let is_terminating = |worker: &&Worker| worker.is_deleting && !worker.is_finished();
        group.terminating = self.all().filter(is_terminating).count() as u32;
        status.ready = Some(format!("{}/{}", group.ready, group.desired));
        status.replicas = Some(group.pending + group.running);
        status.worker_groups = vec![group];
    }
}
