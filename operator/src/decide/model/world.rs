//! The state of the model: an API server in memory with one job, the effect of decisions on it, and the
//! invariants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_objects::node_signals::Impairment;
use rlt_objects::prepare::{Invalid, Prepared};
use rlt_objects::worker::{Worker, WorkerPhase};
use serde_json::{Value, json};

use super::events::{ActiveAndSuspended, IN_PLACE, IsFound, NUM_WORKERS, PLAIN, WITH_RULES};
use crate::decide::fixtures::{input, worker};
use crate::decide::{
    Decision, Deletion, ReconcileInput, RefusedJob, Report, Specification, decide, refuse, specification,
};
use crate::nodes::{NodeState, NodeStates};

/// API server in memory with one job.
pub(super) struct World {
    pub(super) job: &'static ActiveAndSuspended,
    pub(super) prepared: &'static Prepared,
    pub(super) generation: i64,
    /// Refusal of the specification: whether the one that the job began with is found; `None` if accepted.
    pub(super) refusal: Option<IsFound>,
    pub(super) status: RLTrainingJobStatus,
    pub(super) pods: BTreeMap<String, Arc<Worker>>,
    /// States of the nodes, one for each rank.
    pub(super) nodes: NodeStates,
    /// UID of the pod whose process lives, by rank.
    pub(super) processes: BTreeMap<u32, Arc<str>>,
    /// Whether the claim of the job is being deleted.
    pub(super) claim_is_deleting: bool,
    pub(super) report: Option<Report>,
    pub(super) num_restarts_in_place: u32,
    pub(super) now: Timestamp,
    pub(super) num_pods_made: u32,
    pub(super) num_writes: u32,
    pub(super) has_ended: Option<RLTrainingJobStatus>,
}

impl World {
    pub(super) fn new(has_rules: bool) -> Self {
        let job = if has_rules { &WITH_RULES } else { &PLAIN };
        Self {
            job,
            prepared: &job[0],
            generation: 1,
            refusal: None,
            status: RLTrainingJobStatus::default(),
            pods: BTreeMap::new(),
            nodes: (0..NUM_WORKERS).map(|idx| (node_of(idx), NodeState::Answers)).collect(),
            processes: BTreeMap::new(),
            claim_is_deleting: false,
            report: None,
            num_restarts_in_place: 0,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            num_pods_made: 0,
            num_writes: 0,
            has_ended: None,
        }
    }

    pub(super) fn decide(&self) -> Decision {
        let invalid = Invalid::NotAllowed(vec!["hostNetwork".into()]);
        if self.is_held() {
            let job = RefusedJob {
                status: &self.status,
                generation: self.generation,
                is_suspended: self.prepared.job.spec().run_policy.suspend,
                has_pods: !self.pods.is_empty(),
            };
            let decision = refuse(&job, &invalid, self.now);
            self.check_held(&decision);
            return decision;
        }
        let workers: Vec<_> = self.pods.values().cloned().collect();
        let decision = decide(&ReconcileInput {
            generation: self.generation,
            nodes: &self.nodes,
            report: self.report.as_ref(),
            deleting_claim: self.claim_is_deleting.then_some("quickstart-storage"),
            now: self.now,
            ..input(self.prepared, &self.status, &workers)
        });
        if self.refusal.is_some() { decision.despite(&invalid, false) } else { decision }
    }

    /// Whether the operator has no specification under which it may continue the job.
    pub(super) fn is_held(&self) -> bool {
        let invalid = Invalid::NotAllowed(Vec::new());
        let present = if self.refusal.is_some() { Err(&invalid) } else { Ok(&self.prepared.accepted) };
        match specification(&self.status, !self.pods.is_empty(), true, present) {
            Specification::Present => false,
            Specification::BeganWith => self.refusal == Some(false),
            Specification::Refused => true,
        }
    }

    /// Checks the decision about a held job, which changes no object. Once the job has begun, only `Stalled`
    /// and `Reconciling` may change in its status, unless its last pod is gone. Once it has ended, only
    /// `Reconciling` may.
    fn check_held(&self, decision: &Decision) {
        assert!(decision.delete.is_empty() && decision.start.is_empty() && !decision.delete_job);
        if self.status.conditions.is_empty() || self.status.attempt.is_none() {
            return;
        }
        let has_ended = self.has_ended.is_some();
        let is_paused = self.status.active_since.is_none() && self.pods.is_empty() && !has_ended;
        let may_change = |type_| match type_ {
            ConditionType::Stalled | ConditionType::Reconciling => !has_ended,
            ConditionType::Suspended | ConditionType::Admitted | ConditionType::PodsReady => is_paused,
            _ => false,
        };
        for (before, after) in self.status.conditions.iter().zip(&decision.status.conditions) {
            let is_same = (before.status, &before.reason) == (after.status, &after.reason);
            let is_clean_up = before.type_ == ConditionType::Reconciling && self.has_ended.is_some();
            assert!(is_same || is_clean_up || may_change(before.type_), "{before:?} became {after:?}");
        }
        assert!(is_paused || decision.status.phase == self.status.phase);
        let is_reconciling = decision.status.is(ConditionType::Reconciling);
        assert!(has_ended || !is_reconciling, "nothing is done: {decision:#?}");
    }

    /// Applies a decision until the operator dies, after `num_calls` calls. Returns the number of calls made.
    pub(super) fn apply(&mut self, decision: Decision, mut num_calls: usize) -> usize {
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

    pub(super) fn delete(&mut self, deletion: &Deletion) {
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

    pub(super) fn node(&self, idx: u32) -> &NodeState {
        &self.nodes[&node_of(idx)]
    }

    pub(super) fn answers(&self, idx: u32) -> bool {
        matches!(self.node(idx), NodeState::Answers | NodeState::Impaired(_))
    }

    pub(super) fn set_node(&mut self, idx: u32, state: NodeState) {
        self.nodes.insert(node_of(idx), state);
    }

    pub(super) fn make(&mut self, idx: u32, attempt: u32) {
        assert!(self.has_ended.is_none(), "a pod was made after the end");
        assert!(!self.claim_is_deleting, "a pod was made on a claim that is being deleted");
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

    pub(super) fn write(&mut self, status: RLTrainingJobStatus) {
        self.num_writes += 1;
        assert!(status.attempt >= self.status.attempt, "an attempt was taken back");
        if let Some(end) = &self.has_ended {
            assert_eq!(final_status(&status), final_status(end), "the end was not the end");
        }
        if status.last_failure != self.status.last_failure {
            check_rule(&status);
            let cause = status.last_failure.as_ref().map(|failure| failure.cause);
            assert_ne!(cause, Some(FailureCause::NoProgress), "a trainer that is not heard may train");
        }
        if status.completion_time.is_some() {
            self.has_ended.get_or_insert_with(|| status.clone());
        }
        self.status = status;
    }

    /// Reconciles until nothing is left to do at this moment.
    pub(super) fn settle(&mut self) {
        for _ in 0..10 {
            // Kubernetes keeps the claim while a pod has a node; the operator creates it again.
            self.claim_is_deleting &= self.pods.values().any(|pod| pod.node.is_some());
            let decision = self.decide();
            let changes_pods = !decision.delete.is_empty() || !decision.start.is_empty();
            if !changes_pods && decision.status == self.status {
                if !self.is_held() {
                    self.check();
                }
                return;
            }
            let is_to_go_on = changes_pods || decision.requeue_after == Some(Duration::ZERO);
            self.apply(decision, usize::MAX);
            // If nothing requeues the job, nothing may be left to do.
            let next = self.decide();
            let is_done = next.delete.is_empty() && next.start.is_empty() && next.status == self.status;
            assert!(is_to_go_on || is_done, "forgotten: {next:#?}");
        }
        panic!("the operator does not come to rest");
    }

    pub(super) fn check(&self) {
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
}

/// Checks that a failure ends the job exactly if its rule says so.
pub(super) fn check_rule(status: &RLTrainingJobStatus) {
    let rule = status.last_failure.as_ref().and_then(|failure| failure.rule.as_deref());
    let has_ended = status.completion_time.is_some();
    match rule {
        Some("ignored: Ignore") => assert!(!has_ended, "an ignored failure ended the job"),
        Some("counted: Restart") => {
            let used = status.policy_restarts_used.unwrap_or(0);
            // One more restart is allowed, because an attempt without a report may have saved a checkpoint.
            assert!(has_ended || used <= 3, "{used} of 2 restarts are used");
            assert!(!has_ended || used > 2, "{used} of 2 restarts are used");
        }
        Some("fatal: FailJob") => assert!(has_ended, "a job continues that has to fail"),
        Some(other) => panic!("there is no rule {other}"),
        None => {}
    }
}

pub(super) fn impaired(ends: bool, now: Timestamp) -> NodeState {
    NodeState::Impaired(Arc::new(Impairment {
        cause: if ends { FailureCause::NodeTerminating } else { FailureCause::NodeProblem },
        message: String::new(),
        since: (!ends).then_some(now),
        stops_workers: true,
    }))
}

pub(super) fn node_of(idx: u32) -> Arc<str> {
    format!("node-{idx}").into()
}

/// Returns the fields that may never change once a job has ended.
pub(super) fn final_status(status: &RLTrainingJobStatus) -> Value {
    let conditions: Vec<_> = status
        .conditions
        .iter()
        // A failed clean-up may change this condition.
        .filter(|condition| condition.type_ != ConditionType::Reconciling)
        .map(|condition| (condition.type_, condition.status, &condition.reason))
        .collect();
    json!([conditions, status.completion_time, status.attempt, status.failures_by_cause, status.last_failure])
}
