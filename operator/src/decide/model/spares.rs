//! Model test of jobs with hot spares: random histories against an API server in memory, with launchers whose
//! reports are delayed and an operator that crashes between any two calls. In every history, no rank has two
//! live processes, no pod is assigned ranks before the status says so, and the job ends.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::prepare::Prepared;
use rlt_objects::worker::{Exit, Explanation, Launcher, Worker, WorkerPhase};
use rlt_objects::worker_id::WorkerId;
use rlt_plan::SPARE_GROUP;
use serde_json::json;

use crate::decide::fixtures::{exit, input, prepared, with_spares, worker};
use crate::decide::{Assignment, Decision, Deletion, ReconcileInput, decide};
use crate::nodes::{NodeState, NodeStates};

const NUM_WORKERS: u32 = 2;
const NUM_SPARES: u32 = 2;

/// An event of a history. A pod is given by its index in the order of names.
#[derive(Clone, Debug)]
enum ModelEvent {
    /// A pod's launcher starts, with its ranks unless the pod is a spare.
    Starts(usize),
    /// A launcher asks the operator, and follows the answer.
    Asks(usize),
    /// The ranks of a pod end with this code, and its launcher lives on.
    RanksEnd(usize, i32),
    /// A pod's launcher ends with this code, and its ranks with it.
    LauncherEnds(usize, i32),
    /// A client deletes a pod.
    Deleted(usize),
    /// A pod that is being deleted is gone.
    Gone(usize),
    /// The node of a pod does not answer any more: the pod is evicted, and its processes live on.
    NodeSilent(usize),
    /// A silent node gets the taint out-of-service: nothing on it runs any more.
    NodeOutOfService(usize),
    /// Time passes, in seconds.
    TimePasses(i64),
    /// `spec.runPolicy.suspend` is set or cleared.
    SetSuspend(bool),
    /// The operator dies after this number of further calls, and the next one has no report of any launcher.
    OperatorCrashes(usize),
    /// The chart is upgraded: pods that are created from now on run another image.
    Upgraded,
}

fn events() -> impl Strategy<Value = Vec<ModelEvent>> {
    let pod = 0..6usize;
    let code = prop::sample::select(vec![75, 76, 80, 81, 137]);
    let one = prop_oneof![
        6 => pod.clone().prop_map(ModelEvent::Starts),
        8 => pod.clone().prop_map(ModelEvent::Asks),
        2 => (pod.clone(), code.clone()).prop_map(|(pod, code)| ModelEvent::RanksEnd(pod, code)),
        2 => (pod.clone(), code).prop_map(|(pod, code)| ModelEvent::LauncherEnds(pod, code)),
        1 => pod.clone().prop_map(ModelEvent::Deleted),
        3 => pod.clone().prop_map(ModelEvent::Gone),
        1 => pod.clone().prop_map(ModelEvent::NodeSilent),
        1 => pod.prop_map(ModelEvent::NodeOutOfService),
        2 => (1..100i64).prop_map(ModelEvent::TimePasses),
        1 => any::<bool>().prop_map(ModelEvent::SetSuspend),
        1 => (0..6usize).prop_map(ModelEvent::OperatorCrashes),
        1 => Just(ModelEvent::Upgraded),
    ];
    prop::collection::vec(one, 0..80)
}

/// One job in two forms: active and suspended.
static JOB: [LazyLock<Prepared>; 2] = [
    LazyLock::new(|| with_spares(prepared(NUM_WORKERS, json!({})), NUM_SPARES)),
    LazyLock::new(|| with_spares(prepared(NUM_WORKERS, json!({"suspend": true})), NUM_SPARES)),
];

/// A pod of the API server, and its processes.
#[derive(Clone, Debug)]
struct Pod {
    worker: Worker,
    /// Whether the pod's launcher lives.
    is_alive: bool,
    /// Index of the worker whose ranks run in the pod.
    ranks: Option<u32>,
    /// Number of the attempt that the pod's launcher started last.
    started: u32,
    ended: Option<Exit>,
    /// Last report of the pod's launcher to the operator.
    heard: Option<Launcher>,
}

struct World {
    prepared: &'static Prepared,
    generation: i64,
    status: RLTrainingJobStatus,
    pods: BTreeMap<String, Pod>,
    nodes: NodeStates,
    now: Timestamp,
    /// End of the time in which launchers may report to a new operator.
    launchers_until: Timestamp,
    num_pods_made: u32,
    /// Image of new pods.
    image: u64,
}

impl World {
    fn new() -> Self {
        Self {
            prepared: &JOB[0],
            generation: 1,
            status: RLTrainingJobStatus::default(),
            pods: BTreeMap::new(),
            nodes: NodeStates::new(),
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            launchers_until: Timestamp::from_second(1_800_000_000).unwrap(),
            num_pods_made: 0,
            image: 1,
        }
    }

    fn decide(&self) -> Decision {
        let seen = |pod: &Pod| {
            let launcher = pod.heard.clone().map(Box::new);
            Arc::new(Worker { launcher, ..pod.worker.clone() })
        };
        let workers: Vec<_> = self.pods.values().map(seen).collect();
        let launchers_due = Duration::try_from(self.launchers_until.duration_since(self.now));
        decide(&ReconcileInput {
            generation: self.generation,
            nodes: &self.nodes,
            now: self.now,
            launchers_due: launchers_due.ok().filter(|due| !due.is_zero()),
            ..input(self.prepared, &self.status, &workers)
        })
    }

    /// Applies a decision until the operator dies, after `num_calls` calls. Returns the number of calls made.
    fn apply(&mut self, decision: Decision, num_calls: usize) -> usize {
        let mut left = num_calls;
        let mut may_call = || {
            let may = left > 0;
            left = left.saturating_sub(1);
            may
        };
        for deletion in decision.delete.iter().take_while(|_| may_call()) {
            self.delete(deletion);
        }
        for assignment in decision.assign.iter().take_while(|_| may_call()) {
            self.assign(assignment);
        }
        for id in decision.start.iter().take_while(|_| may_call()) {
            self.make(id, decision.status.attempt.unwrap_or(1));
        }
        if decision.status != self.status && may_call() {
            assert!(decision.status.attempt >= self.status.attempt, "an attempt was taken back");
            self.status = decision.status;
        }
        num_calls - left
    }

    fn delete(&mut self, deletion: &Deletion) {
        let pod = self.pods.get_mut(&*deletion.name).unwrap();
        assert_eq!(pod.worker.uid, deletion.uid);
        if deletion.lost_node.is_some() {
            assert!(!pod.is_alive, "a pod was force-deleted whose processes live");
            self.pods.remove(&*deletion.name);
        } else if pod.worker.phase == WorkerPhase::Running {
            pod.worker.is_deleting = true;
            pod.worker.leaves_by = Some(self.now + SignedDuration::from_secs(60));
        } else {
            self.pods.remove(&*deletion.name);
        }
    }

    fn assign(&mut self, assignment: &Assignment) {
        assert_eq!(Some(assignment.attempt), self.status.attempt, "ranks of an attempt that is not written");
        self.check_image(assignment);
        let pod = self.pods.get_mut(&*assignment.name).unwrap();
        assert_eq!(pod.worker.uid, assignment.uid);
        let WorkerId { group, idx } = assignment.worker.clone();
        let name = pod.worker.name.to_string();
        let mut promoted = self.status.promoted_spares.iter();
        assert!(
            pod.worker.id() == assignment.worker || promoted.any(|one| one.worker == idx && one.pod == name),
            "{name} got ranks that the status does not give it"
        );
        (pod.worker.group, pod.worker.idx, pod.worker.attempt) = (group, idx, assignment.attempt);
    }

    /// Checks that an assigned pod has the image of its attempt, because ranks of two images refuse each
    /// other.
    fn check_image(&self, assignment: &Assignment) {
        let image = self.pods[&*assignment.name].worker.image;
        let workers = self.pods.values().map(|pod| &pod.worker).filter(|worker| !worker.is_spare());
        let mut of_attempt = workers.filter(|worker| worker.attempt == assignment.attempt);
        let other = of_attempt.find(|worker| worker.image != image);
        assert!(other.is_none(), "{assignment:?} has not the image of {other:?}");
    }

    fn make(&mut self, id: &WorkerId, attempt: u32) {
        assert_eq!(
            attempt,
            self.status.attempt.unwrap_or(1),
            "a pod was made before its attempt was written"
        );
        assert!(!self.prepared.job.spec().run_policy.suspend && self.status.completion_time.is_none());
        self.num_pods_made += 1;
        let name = format!("quickstart-{}-{}", &*id.group, id.idx);
        let uid = self.num_pods_made.to_string().as_str().into();
        let (group, image) = (id.group.clone(), self.image);
        let worker = Worker { name: name.as_str().into(), uid, group, image, ..worker(id.idx, attempt) };
        let pod = Pod { worker, is_alive: false, ranks: None, started: 0, ended: None, heard: None };
        assert!(self.pods.insert(name, pod).is_none(), "two pods of one name");
    }

    /// Reconciles until nothing is left to do at this moment.
    fn settle(&mut self) {
        for _ in 0..12 {
            let decision = self.decide();
            let changes =
                |one: &Decision| !one.delete.is_empty() || !one.start.is_empty() || !one.assign.is_empty();
            if !changes(&decision) && decision.status == self.status {
                return self.check();
            }
            let is_to_go_on = changes(&decision) || decision.requeue_after == Some(Duration::ZERO);
            self.apply(decision, usize::MAX);
            let next = self.decide();
            let is_done = !changes(&next) && next.status == self.status;
            assert!(is_to_go_on || is_done, "forgotten: {next:#?}");
        }
        panic!("the operator does not come to rest: {:#?}", self.decide());
    }

    fn check(&self) {
        let is_there = |pod: &&Pod| !pod.worker.is_deleting && !pod.worker.is_finished();
        let there = || self.pods.values().filter(is_there);
        let num_spares = there().filter(|pod| pod.worker.is_spare()).count();
        assert!(num_spares <= (NUM_SPARES + NUM_WORKERS) as usize, "{num_spares} spares");
        if self.prepared.job.spec().run_policy.suspend {
            assert_eq!(there().count(), 0, "pods of a suspended job");
        }
        if self.status.completion_time.is_some() {
            assert!(there().all(|pod| pod.ranks.is_none() && pod.ended.is_some()), "ranks after the end");
        }
    }

    fn answers(&self, pod: &Pod) -> bool {
        let node = pod.worker.node.as_ref().and_then(|node| self.nodes.get(node));
        node.is_none_or(|state| *state == NodeState::Answers)
    }

    fn start_ranks(&mut self, name: &str, idx: u32, attempt: u32) {
        let twin = self.pods.iter().find(|(_, pod)| pod.ranks == Some(idx));
        assert!(twin.is_none(), "{name} starts rank {idx} beside {twin:#?}");
        let pod = self.pods.get_mut(name).unwrap();
        (pod.ranks, pod.started, pod.ended) = (Some(idx), attempt, None);
    }

    fn happen(&mut self, event: &ModelEvent) {
        match *event {
            ModelEvent::TimePasses(seconds) => self.now += SignedDuration::from_secs(seconds),
            ModelEvent::Upgraded => self.image += 1,
            ModelEvent::SetSuspend(suspend) => {
                self.prepared = &JOB[usize::from(suspend)];
                self.generation += 1;
            }
            ModelEvent::OperatorCrashes(mut num_calls) => {
                while num_calls > 0 {
                    let decision = self.decide();
                    match self.apply(decision, num_calls) {
                        0 => break,
                        done => num_calls -= done,
                    }
                }
                self.pods.values_mut().for_each(|pod| pod.heard = None);
                self.launchers_until = self.now + SignedDuration::from_secs(30);
            }
            ModelEvent::Starts(pod)
            | ModelEvent::Asks(pod)
            | ModelEvent::RanksEnd(pod, _)
            | ModelEvent::LauncherEnds(pod, _)
            | ModelEvent::Deleted(pod)
            | ModelEvent::Gone(pod)
            | ModelEvent::NodeSilent(pod)
            | ModelEvent::NodeOutOfService(pod) => {
                if let Some(name) = self.pods.keys().nth(pod).cloned() {
                    self.happen_to(&name, event);
                }
            }
        }
    }

    fn happen_to(&mut self, name: &str, event: &ModelEvent) {
        let (seconds, leaves_by) = (self.now.as_second(), self.now + SignedDuration::from_secs(60));
        let answers = self.answers(&self.pods[name]);
        let Some(pod) = self.pods.get_mut(name) else { return };
        let node: Arc<str> = format!("node-{name}-{}", pod.worker.uid).into();
        match *event {
            ModelEvent::Starts(_) if pod.worker.phase == WorkerPhase::Pending && !pod.worker.is_deleting => {
                (pod.worker.phase, pod.worker.is_ready, pod.is_alive) = (WorkerPhase::Running, true, true);
                pod.worker.node = Some(node.clone());
                self.nodes.insert(node, NodeState::Answers);
                let Worker { idx, attempt, .. } = pod.worker;
                if !pod.worker.is_spare() {
                    self.start_ranks(name, idx, attempt);
                }
            }
            ModelEvent::Asks(_) if pod.is_alive && answers => self.ask(name),
            ModelEvent::RanksEnd(_, code) if pod.ranks.take().is_some() => {
                pod.ended = Some(*exit(code, seconds));
            }
            ModelEvent::LauncherEnds(_, code) if pod.is_alive => {
                (pod.is_alive, pod.ranks) = (false, None);
                if answers {
                    pod.worker.phase = if code == 0 { WorkerPhase::Succeeded } else { WorkerPhase::Failed };
                    (pod.worker.is_ready, pod.worker.exit) = (false, Some(exit(code, seconds)));
                }
            }
            ModelEvent::Deleted(_) => {
                pod.worker.is_deleting = true;
                pod.worker.leaves_by.get_or_insert(leaves_by);
            }
            ModelEvent::Gone(_) if pod.worker.is_deleting && answers => drop(self.pods.remove(name)),
            ModelEvent::NodeSilent(_) if pod.is_alive => {
                let reason = "DeletionByTaintManager".to_owned();
                pod.worker.disruption = Some(Box::new(Explanation { reason, message: String::new() }));
                pod.worker.is_deleting = true;
                pod.worker.leaves_by.get_or_insert(leaves_by);
                self.nodes.insert(node, NodeState::Silent);
            }
            ModelEvent::NodeOutOfService(_) if !answers => {
                (pod.is_alive, pod.ranks) = (false, None);
                self.nodes.insert(node, NodeState::Lost);
            }
            _ => {}
        }
    }

    /// Lets the launcher of a live pod report its state, and follow the operator's answer.
    fn ask(&mut self, name: &str) {
        let is_over = self.status.completion_time.is_some();
        let seconds = self.now.as_second();
        let Some(pod) = self.pods.get_mut(name) else { return };
        pod.heard = Some(Launcher { attempt: pod.started, ended: pod.ended.clone(), is_loaded: true });
        let Worker { idx, attempt, .. } = pod.worker;
        let has_ranks_to_start = !pod.worker.is_spare() && attempt > pod.started;
        if pod.ranks.is_some() && has_ranks_to_start {
            // The attempt is superseded: the launcher ends its ranks, and its next report says so.
            (pod.ranks, pod.ended) = (None, Some(*exit(80, seconds)));
        } else if is_over {
            self.happen_to(name, &ModelEvent::LauncherEnds(0, 76));
        } else if pod.ranks.is_none() && has_ranks_to_start && !pod.worker.is_deleting {
            self.start_ranks(name, idx, attempt);
        }
    }

    fn happen_to_all(&mut self, event: &ModelEvent) {
        for name in self.pods.keys().cloned().collect::<Vec<_>>() {
            if self.pods.contains_key(&name) {
                self.happen_to(&name, event);
            }
        }
        self.settle();
    }

    /// Ends all failures, after which the job must complete.
    fn end_well(&mut self) {
        self.happen(&ModelEvent::SetSuspend(false));
        self.happen_to_all(&ModelEvent::NodeOutOfService(0));
        for _ in 0..20 {
            self.happen_to_all(&ModelEvent::Gone(0));
            self.happen(&ModelEvent::TimePasses(301));
            self.settle();
            self.happen_to_all(&ModelEvent::Starts(0));
            (0..3).for_each(|_| self.happen_to_all(&ModelEvent::Asks(0)));
            let attempt = self.status.attempt;
            let is_worker =
                |pod: &&Pod| pod.ranks.is_some() && Some(pod.started) == attempt && !pod.worker.is_deleting;
            if self.pods.values().filter(is_worker).count() == NUM_WORKERS as usize {
                self.happen_to_all(&ModelEvent::LauncherEnds(0, 0));
            }
            if self.status.completion_time.is_some() {
                return;
            }
        }
        panic!("the job does not end: {:#?} {:#?}", self.status, self.pods);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn under_random_faults_no_rank_has_two_processes_and_a_job_with_spares_ends(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.happen(event);
            if !matches!(event, ModelEvent::OperatorCrashes(_)) {
                world.settle();
            }
        }
        world.end_well();
    }
}

#[test]
fn a_job_that_loses_a_worker_and_has_a_spare_makes_no_new_worker() {
    let mut world = World::new();
    world.settle();
    world.happen_to_all(&ModelEvent::Starts(0));
    world.happen_to_all(&ModelEvent::Starts(0));
    world.happen_to_all(&ModelEvent::Asks(0));
    assert_eq!(world.num_pods_made, NUM_WORKERS + NUM_SPARES);
    world.happen_to("quickstart-trainer-1", &ModelEvent::LauncherEnds(0, 137));
    world.happen_to("quickstart-trainer-0", &ModelEvent::RanksEnd(0, 76));
    world.settle();
    (0..2).for_each(|_| world.happen_to_all(&ModelEvent::Asks(0)));
    assert_eq!(world.num_pods_made, NUM_WORKERS + NUM_SPARES + 1, "one more spare");
    assert_eq!((world.status.attempt, world.pods["quickstart-spare-0"].ranks), (Some(2), Some(1)));
    assert!(world.pods.keys().any(|name| name.contains(SPARE_GROUP) && name.ends_with('2')));
    world.end_well();
}
