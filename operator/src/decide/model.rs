//! Random lives of a job against an API server held in memory, with an operator that crashes between any two calls.
//! Whatever happens: attempts only grow, the end is the end, nothing runs while the job is suspended, nothing is written
//! when nothing is new, and every job ends.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
use serde_json::{Value, json};

use super::fixtures::{exit, prepared, worker};
use super::{Decision, Facts, decide};
use crate::prepare::Prepared;
use crate::worker::{Explanation, Worker, WorkerPhase};

/// Something that happens to a job.
#[derive(Clone, Debug)]
enum Happening {
    /// A pod's process starts.
    Runs(u32),
    /// A pod's process ends with this code.
    Ends(u32, i32),
    /// Somebody deletes a pod.
    IsDeleted(u32),
    /// The node of a pod is gone: the pod fails and is deleted.
    LosesNode(u32),
    /// A pod that is being deleted is gone.
    IsGone(u32),
    /// Somebody holds the job back or lets it go on.
    Suspends(bool),
    /// Seconds pass.
    Waits(i64),
    /// The operator dies after so many of its next calls, and another one takes over.
    Crashes(usize),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let idx = 0..NUM_WORKERS;
    let code = prop::sample::select(vec![0, 1, 2, 75, 76, 77, 78, 79, 80, 137, 139]);
    let one = prop_oneof![
        4 => idx.clone().prop_map(Happening::Runs),
        2 => (idx.clone(), code).prop_map(|(idx, code)| Happening::Ends(idx, code)),
        1 => idx.clone().prop_map(Happening::IsDeleted),
        1 => idx.clone().prop_map(Happening::LosesNode),
        3 => idx.prop_map(Happening::IsGone),
        1 => any::<bool>().prop_map(Happening::Suspends),
        2 => (1..400i64).prop_map(Happening::Waits),
        1 => (0..6usize).prop_map(Happening::Crashes),
    ];
    prop::collection::vec(one, 0..60)
}

const NUM_WORKERS: u32 = 3;

/// The job as it is active, and as it is suspended.
static ACTIVE: LazyLock<Prepared> = LazyLock::new(|| prepared(NUM_WORKERS, json!({})));
static SUSPENDED: LazyLock<Prepared> = LazyLock::new(|| prepared(NUM_WORKERS, json!({"suspend": true})));

/// An API server with one job in it.
struct World {
    prepared: &'static Prepared,
    generation: i64,
    status: RLTrainingJobStatus,
    pods: BTreeMap<String, Arc<Worker>>,
    now: Timestamp,
    num_pods_made: u32,
    num_writes: u32,
    has_ended: Option<RLTrainingJobStatus>,
}

impl World {
    fn new() -> Self {
        Self {
            prepared: &ACTIVE,
            generation: 1,
            status: RLTrainingJobStatus::default(),
            pods: BTreeMap::new(),
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            num_pods_made: 0,
            num_writes: 0,
            has_ended: None,
        }
    }

    fn decide(&self) -> Decision {
        let workers: Vec<_> = self.pods.values().cloned().collect();
        decide(&Facts {
            prepared: self.prepared,
            status: &self.status,
            generation: self.generation,
            is_tracked: false,
            workers: &workers,
            report: None,
            now: self.now,
        })
    }

    /// Carries out as many calls of one decision as the operator lives for. Returns how many it had.
    fn carry_out(&mut self, decision: Decision, mut num_calls: usize) -> usize {
        let mut done = 0;
        let mut may_call = || {
            let may = num_calls > 0;
            num_calls = num_calls.saturating_sub(1);
            done += usize::from(may);
            may
        };
        for deletion in &decision.delete {
            if may_call() {
                self.delete(&deletion.name, &deletion.uid);
            }
        }
        for idx in &decision.start {
            if may_call() {
                self.make(*idx, decision.status.attempt.unwrap_or(1));
            }
        }
        if decision.status != self.status && may_call() {
            self.write(decision.status);
        }
        done
    }

    fn delete(&mut self, name: &str, uid: &str) {
        let pod = self.pods.get(name).unwrap().clone();
        assert_eq!(&*pod.uid, uid);
        match pod.phase {
            WorkerPhase::Running => {
                let leaving = Worker { is_deleting: true, ..(*pod).clone() };
                self.pods.insert(name.to_owned(), Arc::new(leaving));
            }
            _ => drop(self.pods.remove(name)),
        }
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
            assert_eq!(verdict(&status), verdict(end), "the end was not the end");
        }
        if status.completion_time.is_some() {
            self.has_ended.get_or_insert_with(|| status.clone());
        }
        self.status = status;
    }

    /// Lets the operator work until it has nothing to do at this moment.
    fn settle(&mut self) {
        for _ in 0..10 {
            let decision = self.decide();
            if decision.delete.is_empty() && decision.start.is_empty() && decision.status == self.status {
                return self.check();
            }
            self.carry_out(decision, usize::MAX);
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

    fn happen(&mut self, happening: &Happening) {
        let seconds = self.now.as_second();
        match *happening {
            Happening::Runs(idx) => self.change(idx, |pod| {
                if pod.phase == WorkerPhase::Pending {
                    pod.phase = WorkerPhase::Running;
                    pod.is_ready = true;
                }
            }),
            Happening::Ends(idx, code) => self.change(idx, |pod| {
                if pod.phase == WorkerPhase::Running {
                    pod.phase = if code == 0 { WorkerPhase::Succeeded } else { WorkerPhase::Failed };
                    pod.is_ready = false;
                    pod.exit = Some(exit(code, seconds));
                }
            }),
            Happening::IsDeleted(idx) => self.change(idx, |pod| pod.is_deleting = true),
            Happening::LosesNode(idx) => self.change(idx, |pod| {
                let reason = "DeletionByTaintManager".to_owned();
                pod.disruption = Some(Explanation { reason, message: String::new() });
                pod.is_deleting = true;
            }),
            Happening::IsGone(idx) => {
                self.pods.retain(|_, pod| pod.idx != idx || !pod.is_deleting);
            }
            Happening::Suspends(suspend) => self.suspend(suspend),
            Happening::Waits(seconds) => self.now += SignedDuration::from_secs(seconds),
            Happening::Crashes(num_calls) => self.crash(num_calls),
        }
    }

    fn crash(&mut self, mut num_calls: usize) {
        while num_calls > 0 {
            let decision = self.decide();
            match self.carry_out(decision, num_calls) {
                0 => return,
                done => num_calls -= done,
            }
        }
    }

    fn suspend(&mut self, suspend: bool) {
        self.prepared = if suspend { &SUSPENDED } else { &ACTIVE };
        self.generation += 1;
    }

    /// From here on everything goes well.
    fn end_well(&mut self) {
        self.suspend(false);
        for _ in 0..20 {
            for idx in 0..NUM_WORKERS {
                self.happen(&Happening::IsGone(idx));
            }
            self.settle();
            self.happen(&Happening::Waits(301));
            self.settle();
            (0..NUM_WORKERS).for_each(|idx| self.happen(&Happening::Runs(idx)));
            self.settle();
            (0..NUM_WORKERS).for_each(|idx| self.happen(&Happening::Ends(idx, 0)));
            self.settle();
            if self.has_ended.is_some() {
                return;
            }
        }
        panic!("the job does not end: {:#?}", self.status);
    }
}

/// What may never change once a job has ended.
fn verdict(status: &RLTrainingJobStatus) -> Value {
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| (condition.type_, condition.status, &condition.reason))
        .collect();
    json!([conditions, status.completion_time, status.attempt, status.failures_by_cause, status.last_failure])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_job_keeps_its_promises_and_ends(happenings in happenings()) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
            if !matches!(happening, Happening::Crashes(_)) {
                world.settle();
            }
        }
        world.end_well();
    }

    #[test]
    fn a_job_that_goes_well_costs_one_pod_a_rank_and_few_writes(waits in prop::collection::vec(1..100i64, 3)) {
        let mut world = World::new();
        world.settle();
        for idx in 0..NUM_WORKERS {
            world.happen(&Happening::Waits(waits[idx as usize]));
            world.happen(&Happening::Runs(idx));
        }
        world.settle();
        (0..NUM_WORKERS).for_each(|idx| world.happen(&Happening::Ends(idx, 0)));
        world.settle();
        prop_assert_eq!(world.num_pods_made, NUM_WORKERS);
        prop_assert_eq!(world.num_writes, 3);
        prop_assert_eq!(world.status.attempt, Some(1));
    }
}
