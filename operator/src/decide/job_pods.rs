//! Pods of a job: those of this attempt by group and index, those of earlier attempts, and spares.

use std::sync::Arc;

use rlt_api::status::{RLTrainingJobStatus, WorkerGroupStatus};
use rlt_objects::worker::{Worker, WorkerPhase};
use rlt_objects::worker_id::WorkerId;
use rlt_plan::{Plan, SPARE_GROUP, WorkerGroup};

use super::JobState;

/// Pods of a job, sorted by role.
pub(super) struct JobPods<'a> {
    /// Pods of the groups whose workers have ranks, in the order of the plan.
    pub(super) groups: Vec<GroupPods<'a>>,
    /// Pods of other attempts, and pods whose group or index the plan does not have.
    pub(super) previous: Vec<&'a Worker>,
    /// Spares, which belong to no attempt.
    pub(super) spares: Vec<&'a Worker>,
    /// Number of spares in the plan.
    num_spares: Option<u32>,
}

/// Pods of a group in this attempt.
pub(super) struct GroupPods<'a> {
    plan: &'a WorkerGroup,
    /// Pods by index; `None` where a worker has no pod.
    pub(super) current: Vec<Option<&'a Worker>>,
}

impl<'a> JobPods<'a> {
    pub(super) fn new(workers: &'a [Arc<Worker>], attempt: u32, plan: &'a Plan) -> Self {
        let with_ranks = plan.worker_groups.iter().filter(|group| !group.is_spare());
        let mut groups: Vec<_> = with_ranks.map(GroupPods::empty).collect();
        let (mut previous, mut spares) = (Vec::new(), Vec::new());
        for worker in workers.iter().map(Arc::as_ref) {
            if worker.is_spare() {
                spares.push(worker);
                continue;
            }
            let group = groups.iter_mut().find(|group| group.plan.name == *worker.group);
            match group.and_then(|group| group.current.get_mut(worker.idx as usize)) {
                Some(place) if worker.attempt == attempt && place.is_none() => *place = Some(worker),
                _ => previous.push(worker),
            }
        }
        let of_spares = plan.worker_groups.iter().find(|group| group.is_spare());
        Self { groups, previous, spares, num_spares: of_spares.map(|group| group.num_workers) }
    }

    /// Yields every worker of the plan, with its pod.
    pub(super) fn places(&self) -> impl Iterator<Item = (WorkerId, Option<&'a Worker>)> {
        self.groups.iter().flat_map(|group| {
            let name = &group.plan.name;
            let id = |idx| WorkerId { group: name.as_str().into(), idx };
            (0..).zip(&group.current).map(move |(idx, place)| (id(idx), *place))
        })
    }

    pub(super) fn present(&self) -> impl Iterator<Item = &'a Worker> {
        self.groups.iter().flat_map(|group| group.current.iter().flatten().copied())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'a Worker> {
        self.present().chain(self.previous.iter().copied()).chain(self.spares.iter().copied())
    }

    /// Returns the first worker of the first group, whose exit decides how the job ended.
    pub(super) fn first(&self) -> Option<&'a Worker> {
        self.groups.first()?.current.first().copied().flatten()
    }

    pub(super) fn num_planned(&self) -> usize {
        self.groups.iter().map(|group| group.current.len()).sum()
    }

    /// Returns the workers that have no pod in any attempt. The pod names of all others are still taken.
    pub(super) fn missing(&self) -> Vec<WorkerId> {
        let is_taken = |id: &WorkerId| self.previous.iter().any(|worker| worker.id() == *id);
        let missing = self.places().filter(|(_, place)| place.is_none()).map(|(id, _)| id);
        missing.filter(|id| !is_taken(id)).collect()
    }

    /// Returns the pod name of the first worker that has no pod in this attempt.
    pub(super) fn first_missing(&self) -> Option<String> {
        self.groups.iter().find_map(|group| {
            let idx = group.current.iter().position(Option::is_none)?;
            Some(group.plan.worker_name(idx as u32))
        })
    }

    /// Returns the state of an attempt without a failure.
    pub(super) fn state(&self, status: &RLTrainingJobStatus) -> JobState {
        if self.places().all(|(_, place)| place.is_some_and(Worker::is_in_place)) {
            JobState::Running
        } else if status.attempt.unwrap_or(1) > 1 && status.attempt_running_time.is_none() {
            JobState::Restarting
        } else {
            JobState::Starting
        }
    }

    /// Writes the pod counts to the status, including pods that are about to be created (`made`). `replicas`
    /// is the number that the subresource `scale` changes: workers without spares.
    pub(super) fn count(&self, made: &[WorkerId], status: &mut RLTrainingJobStatus) {
        let groups: Vec<_> = self.groups.iter().map(|group| group.status(self, made)).collect();
        let sum = |count: fn(&WorkerGroupStatus) -> u32| groups.iter().map(count).sum::<u32>();
        status.ready = Some(format!("{}/{}", sum(|group| group.ready), sum(|group| group.desired)));
        status.replicas = Some(groups.first().map_or(0, |group| group.pending + group.running));
        status.worker_groups = groups.into_iter().chain(self.status_of_spares(made)).collect();
    }

    /// Returns the counts of spares, if the job requests some; a spare is ready once it has loaded
    /// everything.
    fn status_of_spares(&self, made: &[WorkerId]) -> Option<WorkerGroupStatus> {
        let desired = self.num_spares?;
        let made = made.iter().filter(|id| *id.group == *SPARE_GROUP).count() as u32;
        let mut group = WorkerGroupStatus {
            name: SPARE_GROUP.into(),
            desired,
            pending: made,
            ..WorkerGroupStatus::default()
        };
        for spare in &self.spares {
            let is_leaving = spare.is_deleting && !spare.is_finished();
            group.terminating += u32::from(is_leaving);
            match spare.phase {
                _ if is_leaving => {}
                WorkerPhase::Pending => group.pending += 1,
                WorkerPhase::Running => group.running += 1,
                WorkerPhase::Succeeded => group.succeeded += 1,
                WorkerPhase::Failed => group.failed += 1,
            }
            group.ready += u32::from(is_loaded(spare));
        }
        Some(group)
    }
}

impl<'a> GroupPods<'a> {
    fn empty(plan: &'a WorkerGroup) -> Self {
        Self { plan, current: vec![None; plan.num_workers as usize] }
    }

    fn status(&self, pods: &JobPods<'_>, made: &[WorkerId]) -> WorkerGroupStatus {
        let name = &self.plan.name;
        let mut group = WorkerGroupStatus {
            name: name.clone(),
            desired: self.current.len() as u32,
            pending: made.iter().filter(|id| *id.group == **name).count() as u32,
            ..WorkerGroupStatus::default()
        };
        let present = self.current.iter().flatten();
        for worker in present.filter(|worker| !worker.is_deleting || worker.is_finished()) {
            match worker.phase {
                WorkerPhase::Pending => group.pending += 1,
                WorkerPhase::Running => group.running += 1,
                WorkerPhase::Succeeded => group.succeeded += 1,
                WorkerPhase::Failed => group.failed += 1,
            }
            group.ready += u32::from(worker.is_in_place());
        }
        let is_terminating =
            |worker: &&Worker| *worker.group == **name && worker.is_deleting && !worker.is_finished();
        group.terminating = pods.all().filter(is_terminating).count() as u32;
        group
    }
}

/// Whether a spare waits with everything loaded.
pub(super) fn is_loaded(spare: &Worker) -> bool {
    let launcher = spare.launcher.as_ref();
    spare.is_in_place() && launcher.is_some_and(|launcher| launcher.is_loaded)
}
