//! The effect of each event on the state of the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use rlt_api::FailureCause;
use rlt_api::status::{CheckpointStatus, Progress};
use rlt_objects::worker::{Explanation, Worker, WorkerPhase};

use super::events::{IN_PLACE, ModelEvent, NUM_WORKERS};
use super::world::{World, impaired, node_of};
use crate::decide::fixtures::exit;
use crate::decide::{ApplyFailure, Report};
use crate::nodes::NodeState;

impl World {
    pub(super) fn change(&mut self, idx: u32, change: impl Fn(&mut Worker)) {
        if let Some(pod) = self.pods.get_mut(&format!("quickstart-trainer-{idx}")) {
            change(Arc::make_mut(pod));
        }
    }

    pub(super) fn happen(&mut self, event: &ModelEvent) {
        let seconds = self.now.as_second();
        let leaves_by = self.now + SignedDuration::from_secs(60);
        match *event {
            ModelEvent::PodBound(idx) => self.bind(idx),
            ModelEvent::PodStarts(idx) => self.run(idx),
            ModelEvent::ProcessExits(idx, code) if self.processes.contains_key(&idx) => {
                self.processes.remove(&idx);
                if self.answers(idx) {
                    self.change(idx, |pod| {
                        pod.phase = if code == 0 { WorkerPhase::Succeeded } else { WorkerPhase::Failed };
                        pod.is_ready = false;
                        pod.exit = Some(exit(code, seconds));
                    });
                }
            }
            ModelEvent::ProcessExits(..) => {}
            ModelEvent::PodDeleted(idx) => self.change(idx, |pod| {
                pod.is_deleting = true;
                pod.leaves_by.get_or_insert(leaves_by);
            }),
            ModelEvent::NodeSilent(idx) if self.processes.contains_key(&idx) => {
                self.set_node(idx, NodeState::Silent);
                self.change(idx, |pod| {
                    let reason = "DeletionByTaintManager".to_owned();
                    pod.disruption = Some(Box::new(Explanation { reason, message: String::new() }));
                    pod.is_deleting = true;
                    pod.leaves_by.get_or_insert(leaves_by);
                });
            }
            ModelEvent::NodeSilent(_) => {}
            ModelEvent::NodeImpaired(idx, ends) if self.answers(idx) => {
                self.set_node(idx, impaired(ends, self.now));
            }
            ModelEvent::NodeImpaired(..) => {}
            ModelEvent::NodeReturns(idx) => self.find_node(idx),
            ModelEvent::NodeOutOfService(idx) => {
                if *self.node(idx) == NodeState::Silent {
                    self.set_node(idx, NodeState::Lost);
                    self.processes.remove(&idx);
                }
            }
            ModelEvent::CheckpointSaved(steps) => self.save(steps),
            ModelEvent::StepFinished => self.finish_step(),
            ModelEvent::RestartedInPlace => self.restart_in_place(),
            ModelEvent::PodGone(idx) => self.remove_leaving_pod(idx),
            ModelEvent::ClaimDeleted => self.claim_is_deleting = true,
            ModelEvent::SetSuspend(suspend) => self.suspend(suspend),
            ModelEvent::TimePasses(seconds) => {
                self.now += SignedDuration::from_secs(seconds);
                if let Some(report) = &mut self.report {
                    report.without_step = None;
                }
            }
            ModelEvent::OperatorCrashes(num_calls) => self.crash(num_calls),
            ModelEvent::ApiServerRefuses(_) if self.is_held() => {}
            ModelEvent::ApiServerRefuses(num_calls) => self.refuse(num_calls),
            ModelEvent::SpecificationRefused(refusal) => self.refusal = refusal,
        }
    }

    /// Removes a deleted pod whose node confirms that its processes have ended.
    fn remove_leaving_pod(&mut self, idx: u32) {
        let is_leaving = self.pods.values().any(|pod| pod.idx == idx && pod.is_deleting);
        if is_leaving && self.answers(idx) {
            self.processes.remove(&idx);
            self.pods.retain(|_, pod| pod.idx != idx);
        }
    }

    /// Gives a pod its node, as the scheduler does while the claim is not being deleted.
    fn bind(&mut self, idx: u32) {
        let is_possible = self.answers(idx) && !self.claim_is_deleting;
        self.change(idx, |pod| {
            if is_possible && pod.phase == WorkerPhase::Pending && !pod.is_deleting {
                pod.node = Some(node_of(idx));
            }
        });
    }

    pub(super) fn run(&mut self, idx: u32) {
        let Some(pod) = self.pods.values().find(|pod| pod.idx == idx).cloned() else { return };
        let may_run = pod.phase == WorkerPhase::Pending && !pod.is_deleting && !self.claim_is_deleting;
        if !may_run || !self.answers(idx) {
            return;
        }
        let twin = self.processes.insert(idx, pod.uid.clone());
        assert_eq!(twin, None, "two processes of one rank");
        self.change(idx, |pod| {
            pod.phase = WorkerPhase::Running;
            pod.is_ready = true;
            pod.node = Some(node_of(idx));
        });
    }

    /// Lets a node answer again. Its kubelet then reports processes that have ended in the meantime.
    pub(super) fn find_node(&mut self, idx: u32) {
        if !self.answers(idx) {
            self.set_node(idx, NodeState::Answers);
        }
        let seconds = self.now.as_second();
        if !self.processes.contains_key(&idx) {
            self.change(idx, |pod| {
                if pod.phase == WorkerPhase::Running {
                    pod.phase = WorkerPhase::Failed;
                    pod.is_ready = false;
                    pod.exit = Some(exit(137, seconds));
                }
            });
        }
    }

    pub(super) fn save(&mut self, steps: u64) {
        let known = self.report.as_ref().and_then(|report| report.checkpoints.as_ref()?.first());
        let checkpoint = CheckpointStatus {
            step: known.map_or(0, |known| known.step) + steps,
            path: String::new(),
            digest: String::new(),
            world_size: None,
            latest: true,
            time: self.now.to_string(),
        };
        let attempt = self.status.attempt.unwrap_or(1);
        let restarts = self.restarts(attempt);
        let checkpoints = Some(vec![checkpoint]);
        self.report = Some(Report { attempt, checkpoints, restarts, ..Report::default() });
    }

    pub(super) fn finish_step(&mut self) {
        let attempt = self.status.attempt.unwrap_or(1);
        let runs = self.pods.values().any(|pod| pod.attempt == attempt && pod.phase == WorkerPhase::Running);
        if runs && self.has_ended.is_none() {
            let restarts = self.restarts(attempt);
            let report = self.report.take().unwrap_or_default();
            let step = report.progress.as_ref().map_or(1, |progress| progress.step + 1);
            let step_time = Some(self.now.to_string());
            let progress = Some(Progress { step, num_steps: 1000, step_time, ..Progress::default() });
            let without_step = Some(Duration::ZERO);
            self.report = Some(Report { attempt, restarts, progress, without_step, ..report });
        }
    }

    /// Returns the restarts in place that an attempt has reported.
    pub(super) fn restarts(&self, attempt: u32) -> BTreeMap<FailureCause, u32> {
        let report = self.report.as_ref().filter(|report| report.attempt == attempt);
        report.map(|report| report.restarts.clone()).unwrap_or_default()
    }

    pub(super) fn restart_in_place(&mut self) {
        let attempt = self.status.attempt.unwrap_or(1);
        let runs = self.pods.values().any(|pod| pod.attempt == attempt && pod.phase == WorkerPhase::Running);
        if runs && self.has_ended.is_none() {
            let mut restarts = self.restarts(attempt);
            *restarts.entry(IN_PLACE).or_default() += 1;
            self.num_restarts_in_place += 1;
            let report = self.report.take().unwrap_or_default();
            self.report = Some(Report { attempt, restarts, ..report });
        }
    }

    pub(super) fn crash(&mut self, mut num_calls: usize) {
        while num_calls > 0 {
            let decision = self.decide();
            match self.apply(decision, num_calls) {
                0 => return,
                done => num_calls -= done,
            }
        }
    }

    pub(super) fn refuse(&mut self, num_calls: usize) {
        let decision = self.decide();
        let num_changes = decision.delete.len() + decision.start.len();
        let done = num_calls.min(num_changes);
        let failure = ApplyFailure {
            reason: rlt_api::Reason::ObjectRefused,
            message: "no".into(),
            needs_action: num_calls.is_multiple_of(2),
        };
        let failed = decision.clone().failed(failure, self.now);
        self.apply(decision, done);
        self.write(failed.status);
    }

    pub(super) fn suspend(&mut self, suspend: bool) {
        self.prepared = &self.job[usize::from(suspend)];
        self.generation += 1;
    }

    /// Ends all failures, after which the job must complete.
    pub(super) fn end_well(&mut self) {
        self.suspend(false);
        self.refusal = None;
        for idx in 0..NUM_WORKERS {
            self.happen(&ModelEvent::NodeOutOfService(idx));
        }
        self.settle();
        (0..NUM_WORKERS).for_each(|idx| self.happen(&ModelEvent::NodeReturns(idx)));
        self.settle();
        for _ in 0..20 {
            for idx in 0..NUM_WORKERS {
                self.happen(&ModelEvent::PodGone(idx));
            }
            self.settle();
            self.happen(&ModelEvent::TimePasses(301));
            self.settle();
            (0..NUM_WORKERS).for_each(|idx| self.happen(&ModelEvent::PodStarts(idx)));
            self.settle();
            (0..NUM_WORKERS).for_each(|idx| self.happen(&ModelEvent::ProcessExits(idx, 0)));
            self.settle();
            if self.has_ended.is_some() {
                return;
            }
        }
        panic!("the job does not end: {:#?}", self.status);
    }
}
