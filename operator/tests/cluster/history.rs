//! Records everything that happens to the jobs and pods of a namespace, in the API server's own order, and
//! checks it: under all faults no rank has two pods, none is created while the job is suspended or has ended,
//! attempts only grow, the end is final, and every write changes something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, ObjectList};
use kube::runtime::watcher::{self, Event, watcher};
use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_objects::labels;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::TIMEOUT;
use crate::test_namespace::{TestNamespace, is_true, unseen, until};

/// One version of an object, or its end.
#[derive(Clone, Debug)]
enum Observation {
    Job { uid: String, name: String, spec: Value, status: Box<RLTrainingJobStatus> },
    Pod { uid: String, job: String, idx: String, attempt: u32 },
    PodIsGone { uid: String },
}

#[derive(Debug, Default)]
struct Recorded {
    /// Observations by their version in the API server's store, which pods and jobs share.
    observations: Mutex<BTreeMap<(u64, String), Observation>>,
    changes: Notify,
}

pub(crate) struct History {
    recorded: Arc<Recorded>,
    _watches: JoinSet<()>,
}

impl History {
    /// Watches from now on.
    pub(crate) async fn of(test: &TestNamespace) -> Self {
        let recorded = Arc::new(Recorded::default());
        let mut watches = JoinSet::new();
        let synced = Arc::new(Notify::new());
        watches.spawn(follow(
            watcher(test.jobs(), watcher::Config::default()),
            recorded.clone(),
            synced.clone(),
            job,
        ));
        synced.notified().await;
        watches.spawn(follow(
            watcher(test.pods(), watcher::Config::default()),
            recorded.clone(),
            synced.clone(),
            pod,
        ));
        synced.notified().await;
        Self { recorded, _watches: watches }
    }

    /// Waits until the latest status of a job is as wished, without a call.
    pub(crate) async fn when(
        &self,
        name: &str,
        wish: impl Fn(&RLTrainingJobStatus) -> bool,
    ) -> RLTrainingJobStatus {
        let wished = async {
            loop {
                let changes = self.recorded.changes.notified();
                if let Some(status) = self.latest(name).filter(|status| wish(status)) {
                    return status;
                }
                changes.await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, wished).await;
        waited.unwrap_or_else(|_| panic!("{name} did not come so far: {:#?}", self.latest(name)))
    }

    fn latest(&self, name: &str) -> Option<RLTrainingJobStatus> {
        let observations = self.recorded.observations.lock().unwrap();
        observations.values().rev().find_map(|observation| match observation {
            Observation::Job { name: other, status, .. } if other == name => Some((**status).clone()),
            _ => None,
        })
    }

    /// How often the status of a job was written.
    pub(crate) fn num_statuses(&self, name: &str) -> usize {
        let observations = self.recorded.observations.lock().unwrap();
        let statuses = observations.values().filter_map(|observation| match observation {
            Observation::Job { name: other, status, .. } if other == name => Some(&**status),
            _ => None,
        });
        // The initial status has no writer.
        let mut last = unseen();
        let without_number =
            |status: &RLTrainingJobStatus| RLTrainingJobStatus { writes: 0, ..status.clone() };
        let statuses = statuses.map(without_number);
        statuses.filter(|status| *status != std::mem::replace(&mut last, status.clone())).count()
    }

    /// Checks the recorded history, once it is complete. `has_rivals` if two operators worked at once: the
    /// slower one may make a pod of the attempt before, which is then removed.
    pub(crate) async fn check(&self, test: &TestNamespace, has_rivals: bool) {
        let jobs = test.jobs().list(&Default::default()).await.unwrap();
        let pods = test.pods().list(&Default::default()).await.unwrap();
        let is_complete = async || jobs.iter().all(|job| self.has(job)) && self.has_pods(&pods);
        until("the history is complete", is_complete).await;
        let mut checker = Checker { has_rivals, ..Checker::default() };
        for ((version, _), observation) in &*self.recorded.observations.lock().unwrap() {
            checker.observe(*version, observation);
        }
    }

    /// Whether an object was seen as it is here, or later.
    fn has<K: kube::Resource>(&self, object: &K) -> bool {
        let (wanted, uid) = (version(object), object.meta().uid.as_ref().unwrap());
        let observations = self.recorded.observations.lock().unwrap();
        observations.keys().any(|(seen, other)| other == uid && *seen >= wanted)
    }

    /// Whether the pods of a list were seen, and so was the end of each earlier one. The watch of pods may be
    /// behind that of jobs: a job would seem to be suspended while pods are left.
    fn has_pods(&self, list: &ObjectList<Pod>) -> bool {
        let is_of_worker = |pod: &&Pod| pod.labels().contains_key(labels::ATTEMPT);
        if !list.iter().filter(is_of_worker).all(|pod| self.has(pod)) {
            return false;
        }
        let listed_at: u64 = list.metadata.resource_version.as_deref().unwrap().parse().unwrap();
        let is_listed = |uid: &String| list.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid));
        let observations = self.recorded.observations.lock().unwrap();
        let has_gone = |uid: &String| {
            let mut all = observations.values();
            all.any(|one| matches!(one, Observation::PodIsGone { uid: gone } if gone == uid))
        };
        observations.iter().all(|((seen, _), one)| match one {
            Observation::Pod { uid, .. } if *seen <= listed_at => is_listed(uid) || has_gone(uid),
            _ => true,
        })
    }
}

fn version<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().unwrap().parse().unwrap()
}

fn job(job: DynamicObject, is_gone: bool) -> Option<Observation> {
    let status = job.data.get("status").cloned().map(|status| serde_json::from_value(status).unwrap());
    (!is_gone).then(|| Observation::Job {
        uid: job.uid().unwrap(),
        name: job.name_any(),
        spec: job.data["spec"].clone(),
        status: Box::new(status.unwrap_or_default()),
    })
}

fn pod(pod: Pod, is_gone: bool) -> Option<Observation> {
    let label = |name: &str| pod.labels().get(name).cloned().unwrap_or_default();
    let uid = pod.uid().unwrap();
    if is_gone {
        return Some(Observation::PodIsGone { uid });
    }
    Some(Observation::Pod {
        uid,
        job: label(labels::JOB_UID),
        idx: format!("{}-{}", label(labels::WORKER_GROUP), label(labels::WORKER_IDX)),
        attempt: label(labels::ATTEMPT).parse().ok()?,
    })
}

async fn follow<K: kube::Resource + Clone + Send + 'static>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    recorded: Arc<Recorded>,
    synced: Arc<Notify>,
    see: fn(K, bool) -> Option<Observation>,
) {
    pin_mut!(events);
    while let Some(event) = events.next().await {
        // A broken watch is restarted from a list.
        let Ok(event) = event else { continue };
        let (object, is_gone) = match event {
            Event::Apply(object) | Event::InitApply(object) => (object, false),
            Event::Delete(object) => (object, true),
            Event::Init => continue,
            Event::InitDone => {
                synced.notify_one();
                continue;
            }
        };
        let key = (version(&object), object.meta().uid.clone().unwrap());
        if let Some(observation) = see(object, is_gone) {
            recorded.observations.lock().unwrap().insert(key, observation);
            recorded.changes.notify_waiters();
        }
    }
}

#[derive(Default)]
struct Checker {
    has_rivals: bool,
    jobs: BTreeMap<String, (Value, RLTrainingJobStatus)>,
    /// Job and rank of every existing pod.
    pods: BTreeMap<String, (String, String)>,
}

impl Checker {
    fn observe(&mut self, version: u64, observation: &Observation) {
        match observation {
            Observation::Job { uid, spec, status, .. } => {
                if let Some((_, before)) = self.jobs.get(uid) {
                    assert!(status.attempt >= before.attempt, "at {version}: an attempt was taken back");
                    if before.completion_time.is_some() {
                        assert_eq!(end(status), end(before), "at {version}: the end was not the end");
                    }
                }
                let is_empty = !self.pods.values().any(|(job, _)| job == uid);
                let says_empty = is_true(status, ConditionType::Suspended) && is_suspended(spec);
                assert!(is_empty || !says_empty, "at {version}: suspended, with pods");
                self.jobs.insert(uid.clone(), (spec.clone(), (**status).clone()));
            }
            Observation::Pod { uid, job, idx, attempt } if !self.pods.contains_key(uid) => {
                self.check_new_pod(version, job, idx, *attempt);
                self.pods.insert(uid.clone(), (job.clone(), idx.clone()));
            }
            Observation::Pod { .. } => {}
            Observation::PodIsGone { uid } => drop(self.pods.remove(uid)),
        }
    }

    fn check_new_pod(&self, version: u64, job: &str, idx: &str, attempt: u32) {
        let twin = self.pods.values().find(|(other, rank)| other == job && rank == idx);
        assert_eq!(twin, None, "at {version}: two pods of one rank");
        // A deleted job may still be reconciled to the end.
        let Some((spec, status)) = self.jobs.get(job) else { return };
        let expected = status.attempt.unwrap_or(1);
        assert!(attempt <= expected, "at {version}: a pod of an attempt that is not written down");
        if !self.has_rivals {
            assert_eq!(attempt, expected, "at {version}: a pod of an attempt that is over");
            assert_eq!(status.completion_time, None, "at {version}: a pod after the end");
            let is_held = is_true(status, ConditionType::Suspended) && is_suspended(spec);
            assert!(!is_held, "at {version}: a pod was made while the job is suspended");
        }
    }
}

fn is_suspended(spec: &Value) -> bool {
    spec.pointer("/runPolicy/suspend") == Some(&Value::Bool(true))
}

/// The fields that may never change once a job has ended.
fn end(status: &RLTrainingJobStatus) -> Value {
    let of_end_types = [ConditionType::Complete, ConditionType::Failed, ConditionType::Succeeded];
    let of_end = status.conditions.iter().filter(|condition| of_end_types.contains(&condition.type_));
    let said: Vec<(ConditionType, ConditionStatus)> =
        of_end.map(|condition| (condition.type_, condition.status)).collect();
    serde_json::json!([
        said,
        status.completion_time,
        status.attempt,
        status.failures_by_cause,
        status.last_failure
    ])
}
