//! Model test: random histories of a job against an API server in memory, with an operator that crashes
//! between any two calls. In all of them no rank has two live processes, attempts only grow, the end is
//! final, nothing runs while the job is suspended, no status is written without a change, and every job ends.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rlt_api::FailureCause;
use rlt_api::status::{CheckpointStatus, ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_objects::node_signals::Impairment;
use rlt_objects::prepare::Prepared;
use rlt_objects::worker::{Explanation, Worker, WorkerPhase};
use serde_json::{Value, json};

use super::fixtures::{exit, input, prepared, worker};
use super::{ApplyFailure, Decision, Deletion, ReconcileInput, Report, decide};
use crate::nodes::{NodeState, NodeStates};

/// A pod event, an exit, or another event of a history.
#[derive(Clone, Debug)]
enum ModelEvent {
    /// A pod's process starts.
    PodStarts(u32),
    /// A pod's process ends with this code.
    ProcessExits(u32, i32),
    /// A client deletes a pod.
    PodDeleted(u32),
    /// The node of a pod does not answer any more: the pod is evicted, and its process lives on.
    NodeSilent(u32),
    /// The node of a rank is about to be taken away, or has a problem.
    NodeImpaired(u32, bool),
    /// A silent node answers again, and its deleted pods end.
    NodeReturns(u32),
    /// A silent node gets the taint out-of-service: nothing on it runs any more.
    NodeOutOfService(u32),
    /// A complete checkpoint is reported, this many steps after the last one.
    CheckpointSaved(u64),
    /// The pod with all ranks restarts them in place, and reports it.
    RestartedInPlace,
    /// A pod that is being deleted is gone.
    PodGone(u32),
    /// `spec.runPolicy.suspend` is set or cleared.
    SetSuspend(bool),
    /// Seconds pass.
    TimePasses(i64),
    /// The operator crashes after so many further calls, and another one continues.
    OperatorCrashes(usize),
    /// After so many calls the API server refuses those that follow; the status is written all the same.
    ApiServerRefuses(usize),
}

fn events() -> impl Strategy<Value = Vec<ModelEvent>> {
    let idx = 0..NUM_WORKERS;
    let code = prop::sample::select(vec![0, 1, 2, 75, 76, 77, 78, 79, 80, 137, 139]);
    let one = prop_oneof![
        4 => idx.clone().prop_map(ModelEvent::PodStarts),
        2 => (idx.clone(), code).prop_map(|(idx, code)| ModelEvent::ProcessExits(idx, code)),
        1 => idx.clone().prop_map(ModelEvent::PodDeleted),
        1 => idx.clone().prop_map(ModelEvent::NodeSilent),
        1 => (idx.clone(), any::<bool>()).prop_map(|(idx, ends)| ModelEvent::NodeImpaired(idx, ends)),
        1 => idx.clone().prop_map(ModelEvent::NodeReturns),
        1 => idx.clone().prop_map(ModelEvent::NodeOutOfService),
        1 => (0..2u64).prop_map(ModelEvent::CheckpointSaved),
        1 => Just(ModelEvent::RestartedInPlace),
        3 => idx.prop_map(ModelEvent::PodGone),
        1 => any::<bool>().prop_map(ModelEvent::SetSuspend),
        2 => (1..400i64).prop_map(ModelEvent::TimePasses),
        1 => (0..6usize).prop_map(ModelEvent::OperatorCrashes),
        1 => (0..6usize).prop_map(ModelEvent::ApiServerRefuses),
    ];
    prop::collection::vec(one, 0..60)
}

const NUM_WORKERS: u32 = 3;
/// A cause that nothing else in a history has.
const IN_PLACE: FailureCause = FailureCause::OutOfMemory;

/// A job as it is active, and as it is suspended.
type ActiveAndSuspended = [LazyLock<Prepared>; 2];
static PLAIN: ActiveAndSuspended = [
    LazyLock::new(|| prepared(NUM_WORKERS, json!({}))),
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"suspend": true}))),
];
static WITH_RULES: ActiveAndSuspended = [
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"failurePolicy": failure_policy()}))),
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"suspend": true, "failurePolicy": failure_policy()}))),
];

fn failure_policy() -> Value {
    let codes = |values: &[i32]| json!({"operator": "In", "values": values});
    json!({"maxRestarts": 2, "rules": [
        {"name": "ignored", "action": "Ignore", "onExitCodes": codes(&[77, 137])},
        {"name": "counted", "action": "Restart", "avoidNode": true, "onExitCodes": codes(&[1, 78])},
        {"name": "fatal", "action": "FailJob", "onReasons": ["DeletionByTaintManager"]},
    ]})
}

/// An API server with one job in it.
struct World {
    job: &'static ActiveAndSuspended,
    prepared: &'static Prepared,
    generation: i64,
    status: RLTrainingJobStatus,
    pods: BTreeMap<String, Arc<Worker>>,
    /// Every rank has a node of its own.
    nodes: NodeStates,
    /// The pod whose process lives, by its rank.
    processes: BTreeMap<u32, Arc<str>>,
    report: Option<Report>,
    num_restarts_in_place: u32,
    now: Timestamp,
    num_pods_made: u32,
    num_writes: u32,
    has_ended: Option<RLTrainingJobStatus>,
}

impl World {
    fn new(has_rules: bool) -> Self {
        let job = if has_rules { &WITH_RULES } else { &PLAIN };
        Self {
            job,
            prepared: &job[0],
            generation: 1,
            status: RLTrainingJobStatus::default(),
            pods: BTreeMap::new(),
            nodes: (0..NUM_WORKERS).map(|idx| (node_of(idx), NodeState::Answers)).collect(),
            processes: BTreeMap::new(),
            report: None,
            num_restarts_in_place: 0,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            num_pods_made: 0,
            num_writes: 0,
            has_ended: None,
        }
    }

    fn decide(&self) -> Decision {
        let workers: Vec<_> = self.pods.values().cloned().collect();
        decide(&ReconcileInput {
            generation: self.generation,
            nodes: &self.nodes,
            report: self.report.as_ref(),
            now: self.now,
            ..input(self.prepared, &self.status, &workers)
        })
    }

    /// Applies a decision until the operator dies, after `num_calls` calls. Returns how many it made.
    fn apply(&mut self, decision: Decision, mut num_calls: usize) -> usize {
        let mut done = 0;
        let mut may_call = || {
            let may = num_calls > 0;
            num_calls = num_calls.saturating_sub(1);
            done += usize::from(may);
            may
        };
        for deletion in &decision.delete {
            if may_call() {
                self.delete(deletion);
            }
        }
        for id in &decision.start {
            if may_call() {
                self.make(id.idx, decision.status.attempt.unwrap_or(1));
            }
        }
        if decision.status != self.status && may_call() {
            self.write(decision.status);
        }
        done
    }

    fn delete(&mut self, deletion: &Deletion) {
        let name = &*deletion.name;
        let pod = self.pods.get(name).unwrap().clone();
        assert_eq!(pod.uid, deletion.uid);
        let is_wanted = !self.prepared.job.spec().run_policy.suspend && self.has_ended.is_none();
        let is_current = self.status.attempt.is_none_or(|attempt| attempt == pod.attempt);
        let is_well = is_wanted && is_current && *self.node(pod.idx) == NodeState::Answers;
        assert!(!is_well, "a worker was stopped without a signal of its node");
        if deletion.lost_node.is_some() {
            assert!(!self.processes.contains_key(&pod.idx), "a pod was force-deleted whose process lives");
            self.pods.remove(name);
        } else if pod.phase == WorkerPhase::Running {
            let leaves_by = Some(self.now + SignedDuration::from_secs(60));
            let leaving = Worker { is_deleting: true, leaves_by, ..(*pod).clone() };
            self.pods.insert(name.to_owned(), Arc::new(leaving));
        } else {
            self.pods.remove(name);
        }
    }

    fn node(&self, idx: u32) -> &NodeState {
        &self.nodes[&node_of(idx)]
    }

    fn answers(&self, idx: u32) -> bool {
        matches!(self.node(idx), NodeState::Answers | NodeState::Impaired(_))
    }

    fn set_node(&mut self, idx: u32, state: NodeState) {
        self.nodes.insert(node_of(idx), state);
    }

    fn make(&mut self, idx: u32, attempt: u32) {
        assert!(self.has_ended.is_none(), "a pod was made after the end");
        assert!(!self.prepared.job.spec().run_policy.suspend, "a pod was made while the job is suspended");
        assert_eq!(
            attempt,
            self.status.attempt.unwrap_or(1),
            "a pod was made before its attempt was written"
        );
        self.num_pods_made += 1;
        let pod = Worker { uid: format!("{}", self.num_pods_made).into(), ..worker(idx, attempt) };
        let twin = self.pods.insert(pod.name.to_string(), Arc::new(pod));
        assert!(twin.is_none(), "two pods of one rank");
    }

    fn write(&mut self, status: RLTrainingJobStatus) {
        self.num_writes += 1;
        assert!(status.attempt >= self.status.attempt, "an attempt was taken back");
        if let Some(end) = &self.has_ended {
            assert_eq!(final_status(&status), final_status(end), "the end was not the end");
        }
        if status.last_failure != self.status.last_failure {
            check_rule(&status);
        }
        if status.completion_time.is_some() {
            self.has_ended.get_or_insert_with(|| status.clone());
        }
        self.status = status;
    }

    /// Reconciles until nothing is left to do at this moment.
    fn settle(&mut self) {
        for _ in 0..10 {
            let decision = self.decide();
            let changes_pods = !decision.delete.is_empty() || !decision.start.is_empty();
            if !changes_pods && decision.status == self.status {
                return self.check();
            }
            let is_to_go_on = changes_pods || decision.requeue_after == Some(Duration::ZERO);
            self.apply(decision, usize::MAX);
            // Nothing requeues the job: then nothing may be left to do.
            let next = self.decide();
            let is_done = next.delete.is_empty() && next.start.is_empty() && next.status == self.status;
            assert!(is_to_go_on || is_done, "forgotten: {next:#?}");
        }
        panic!("the operator does not come to rest");
    }

    fn check(&self) {
        let alive: Vec<_> = self.pods.values().filter(|pod| !pod.is_deleting && !pod.is_finished()).collect();
        if self.prepared.job.spec().run_policy.suspend || self.has_ended.is_some() {
            assert!(alive.is_empty(), "{alive:?} live on");
        }
        for pod in alive {
            assert_eq!(Some(pod.attempt), self.status.attempt, "a worker of another attempt lives on");
        }
        let counted = self.status.failures_by_cause.get(&IN_PLACE).copied().unwrap_or(0);
        assert_eq!(counted, self.num_restarts_in_place, "each restart in place counts once");
        let is_true = |type_| {
            let mut conditions = self.status.conditions.iter();
            conditions.any(|condition| condition.type_ == type_ && condition.status == ConditionStatus::True)
        };
        assert!(!(is_true(ConditionType::Complete) && is_true(ConditionType::Failed)));
        assert_eq!(self.status.conditions.len(), ConditionType::ALL.len());
    }

    fn change(&mut self, idx: u32, change: impl Fn(&mut Worker)) {
        if let Some(pod) = self.pods.get_mut(&format!("quickstart-trainer-{idx}")) {
            change(Arc::make_mut(pod));
        }
    }

    fn happen(&mut self, event: &ModelEvent) {
        let seconds = self.now.as_second();
        let leaves_by = self.now + SignedDuration::from_secs(60);
        match *event {
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
            ModelEvent::RestartedInPlace => self.restart_in_place(),
            ModelEvent::PodGone(idx) if self.answers(idx) => {
                let is_leaving = self.pods.values().any(|pod| pod.idx == idx && pod.is_deleting);
                if is_leaving {
                    self.processes.remove(&idx);
                    self.pods.retain(|_, pod| pod.idx != idx);
                }
            }
            ModelEvent::PodGone(_) => {}
            ModelEvent::SetSuspend(suspend) => self.suspend(suspend),
            ModelEvent::TimePasses(seconds) => self.now += SignedDuration::from_secs(seconds),
            ModelEvent::OperatorCrashes(num_calls) => self.crash(num_calls),
            ModelEvent::ApiServerRefuses(num_calls) => self.refuse(num_calls),
        }
    }

    fn run(&mut self, idx: u32) {
        let Some(pod) = self.pods.values().find(|pod| pod.idx == idx).cloned() else { return };
        let may_run = pod.phase == WorkerPhase::Pending && !pod.is_deleting;
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

    /// A kubelet that is back reports processes that ended meanwhile.
    fn find_node(&mut self, idx: u32) {
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

    fn save(&mut self, steps: u64) {
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

    /// The restarts in place that an attempt has reported.
    fn restarts(&self, attempt: u32) -> BTreeMap<FailureCause, u32> {
        let report = self.report.as_ref().filter(|report| report.attempt == attempt);
        report.map(|report| report.restarts.clone()).unwrap_or_default()
    }

    fn restart_in_place(&mut self) {
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

    fn crash(&mut self, mut num_calls: usize) {
        while num_calls > 0 {
            let decision = self.decide();
            match self.apply(decision, num_calls) {
                0 => return,
                done => num_calls -= done,
            }
        }
    }

    fn refuse(&mut self, num_calls: usize) {
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

    fn suspend(&mut self, suspend: bool) {
        self.prepared = &self.job[usize::from(suspend)];
        self.generation += 1;
    }

    /// From here on nothing fails.
    fn end_well(&mut self) {
        self.suspend(false);
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

/// A failure that a rule decides about ends the job, or not, as the rule says.
fn check_rule(status: &RLTrainingJobStatus) {
    let rule = status.last_failure.as_ref().and_then(|failure| failure.rule.as_deref());
    let has_ended = status.completion_time.is_some();
    match rule {
        Some("ignored: Ignore") => assert!(!has_ended, "an ignored failure ended the job"),
        Some("counted: Restart") => {
            let used = status.policy_restarts_used.unwrap_or(0);
            assert_eq!(has_ended, used > 2, "{used} of 2 restarts are used");
        }
        Some("fatal: FailJob") => assert!(has_ended, "a job continues that has to fail"),
        Some(other) => panic!("there is no rule {other}"),
        None => {}
    }
}

fn impaired(ends: bool, now: Timestamp) -> NodeState {
    NodeState::Impaired(Arc::new(Impairment {
        cause: if ends { FailureCause::NodeTerminating } else { FailureCause::NodeProblem },
        message: String::new(),
        since: (!ends).then_some(now),
        stops_workers: true,
    }))
}

fn node_of(idx: u32) -> Arc<str> {
    format!("node-{idx}").into()
}

/// The fields that may never change once a job has ended.
fn final_status(status: &RLTrainingJobStatus) -> Value {
    let conditions: Vec<_> = status
        .conditions
        .iter()
        // Clean-up may fail.
        .filter(|condition| condition.type_ != ConditionType::Reconciling)
        .map(|condition| (condition.type_, condition.status, &condition.reason))
        .collect();
    json!([conditions, status.completion_time, status.attempt, status.failures_by_cause, status.last_failure])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn under_random_faults_the_invariants_hold_and_every_job_ends(events in events(), has_rules: bool) {
        let mut world = World::new(has_rules);
        for event in &events {
            world.happen(event);
            if !matches!(event, ModelEvent::OperatorCrashes(_) | ModelEvent::ApiServerRefuses(_)) {
                world.settle();
            }
        }
        world.end_well();
    }

    #[test]
    fn a_job_that_goes_well_costs_one_pod_a_rank_and_few_writes(waits in prop::collection::vec(1..100i64, 3)) {
        let mut world = World::new(false);
        world.settle();
        for idx in 0..NUM_WORKERS {
            world.happen(&ModelEvent::TimePasses(waits[idx as usize]));
            world.happen(&ModelEvent::PodStarts(idx));
        }
        world.settle();
        (0..NUM_WORKERS).for_each(|idx| world.happen(&ModelEvent::ProcessExits(idx, 0)));
        world.settle();
        prop_assert_eq!(world.num_pods_made, NUM_WORKERS);
        prop_assert_eq!(world.num_writes, 3);
        prop_assert_eq!(world.status.attempt, Some(1));
    }
}
