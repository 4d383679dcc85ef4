//! What the watches have seen, by the job that it belongs to: pods, cut down to what decides something, and
//! the presence of a job's other objects. Looking up a job costs the size of that job, whatever else is in
//! the cluster.
//!
//! A job is known by namespace, name and UID together: whoever writes its UID or our labels into an object of
//! another namespace makes it the object of a job that does not exist.
//!
//! What the operator itself made is entered at once, without waiting for the watch to tell it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::nodes::Nodes;
use crate::queue::Workload;
use crate::worker::{JobKey, Worker};

/// Pods whose end is remembered, so that a late answer does not bring them back.
const MAX_GONE: usize = 4096;

/// A kind of object that a job has besides its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// The identity of the workers.
    ServiceAccount,
    /// The manifest that workers read.
    ConfigMap,
    /// The name of the first worker.
    Service,
    /// The address behind that name.
    Endpoint,
    /// The volume of the run folder.
    Claim,
    /// Who may reach the workers.
    NetworkPolicy,
    /// What makes a scheduler place all workers or none. It is not watched: it is made before the pods of an
    /// attempt.
    PodGroup,
}

/// A job's objects besides its pods, each with the digest of what it was made from where it carries one.
pub type Children = BTreeMap<Child, Option<String>>;

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Index {
    /// The nodes that pods are on.
    pub nodes: Nodes,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    jobs: HashMap<JobKey, Objects>,
    gone: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Objects {
    workers: BTreeMap<Arc<str>, Arc<Worker>>,
    children: Children,
    workload: Option<Arc<Workload>>,
    /// Since when a change waits for the job to be reconciled.
    changed_at: Option<Instant>,
}

impl Index {
    /// The pods of a job, by their name.
    pub fn workers(&self, job: &JobKey) -> Vec<Arc<Worker>> {
        let seen = self.lock();
        seen.jobs.get(job).map(|objects| objects.workers.values().cloned().collect()).unwrap_or_default()
    }

    /// Notes that something happened to a job, unless that is noted already.
    pub fn note_change(&self, job: &JobKey) {
        if let Some(objects) = self.lock().jobs.get_mut(job) {
            objects.changed_at.get_or_insert_with(Instant::now);
        }
    }

    /// How long the first change since the job was last reconciled has waited.
    pub fn since_change(&self, job: &JobKey) -> Option<Duration> {
        self.lock().jobs.get_mut(job)?.changed_at.take().map(|at| at.elapsed())
    }

    /// The other objects of a job.
    pub fn children(&self, job: &JobKey) -> Children {
        self.lock().jobs.get(job).map(|objects| objects.children.clone()).unwrap_or_default()
    }

    /// By what the queue knows a job.
    pub fn workload(&self, job: &JobKey) -> Option<Arc<Workload>> {
        self.lock().jobs.get(job).and_then(|objects| objects.workload.clone())
    }

    /// Enters what the queue says about a job, unless something newer is known.
    pub fn enter_workload(&self, key: &JobKey, workload: Workload) {
        let mut seen = self.lock();
        let known = &mut seen.objects(key).workload;
        let is_older = |known: &Arc<Workload>| {
            known.uid == workload.uid
                && version(&known.resource_version) > version(&workload.resource_version)
        };
        if !known.as_ref().is_some_and(is_older) {
            *known = Some(Arc::new(workload));
        }
    }

    /// Removes what the queue knew a job by.
    pub fn remove_workload(&self, key: &JobKey, uid: &str) {
        let mut seen = self.lock();
        let known = &mut seen.objects(key).workload;
        known.take_if(|known| known.uid == uid);
        seen.drop_if_empty(key);
    }

    /// Replaces all that the queue says about jobs of a namespace, or of all, after it was listed anew.
    pub fn replace_workloads(&self, namespace: Option<&str>, listed: Vec<(JobKey, Workload)>) {
        let mut seen = self.lock();
        for (_, objects) in seen.jobs.iter_mut().filter(|(key, _)| is_in(key, namespace)) {
            objects.workload = None;
        }
        for (key, workload) in listed {
            seen.objects(&key).workload = Some(Arc::new(workload));
        }
        seen.jobs.retain(|_, objects| !objects.is_empty());
    }

    /// Enters a pod, unless a newer version of it is known or it is gone already.
    pub fn enter(&self, key: &JobKey, worker: Worker) {
        let mut seen = self.lock();
        if seen.gone.contains(&worker.uid) {
            return;
        }
        let workers = &mut seen.objects(key).workers;
        let is_older =
            |known: &Arc<Worker>| known.uid == worker.uid && known.resource_version > worker.resource_version;
        if !workers.get(&worker.name).is_some_and(is_older) {
            workers.insert(worker.name.clone(), Arc::new(worker));
        }
    }

    /// Removes a pod that is gone.
    pub fn remove(&self, key: &JobKey, name: &str, uid: &Arc<str>) {
        let mut seen = self.lock();
        seen.gone.push_back(uid.clone());
        if seen.gone.len() > MAX_GONE {
            seen.gone.pop_front();
        }
        let workers = &mut seen.objects(key).workers;
        if workers.get(name).is_some_and(|known| known.uid == *uid) {
            workers.remove(name);
        }
        seen.drop_if_empty(key);
    }

    /// Replaces all pods of a namespace, or of all, after they were listed anew.
    pub fn replace(&self, namespace: Option<&str>, listed: Vec<(JobKey, Worker)>) {
        let mut seen = self.lock();
        for (_, objects) in seen.jobs.iter_mut().filter(|(key, _)| is_in(key, namespace)) {
            objects.workers.clear();
        }
        for (key, worker) in listed {
            seen.objects(&key).workers.insert(worker.name.clone(), Arc::new(worker));
        }
        seen.jobs.retain(|_, objects| !objects.is_empty());
    }

    /// Enters an object of a job.
    pub fn enter_child(&self, key: &JobKey, child: Child, digest: Option<String>) {
        self.lock().objects(key).children.insert(child, digest);
    }

    /// Removes an object of a job that is gone.
    pub fn remove_child(&self, key: &JobKey, child: Child) {
        let mut seen = self.lock();
        seen.objects(key).children.remove(&child);
        seen.drop_if_empty(key);
    }

    /// Replaces all objects of a kind in a namespace, or in all, after they were listed anew.
    pub fn replace_children(
        &self,
        namespace: Option<&str>,
        child: Child,
        listed: Vec<(JobKey, Option<String>)>,
    ) {
        let mut seen = self.lock();
        for (_, objects) in seen.jobs.iter_mut().filter(|(key, _)| is_in(key, namespace)) {
            objects.children.remove(&child);
        }
        for (key, digest) in listed {
            seen.objects(&key).children.insert(child, digest);
        }
        seen.jobs.retain(|_, objects| !objects.is_empty());
    }

    /// Every job that has objects.
    pub fn jobs(&self) -> Vec<JobKey> {
        self.lock().jobs.keys().cloned().collect()
    }

    /// The jobs that have a pod on one of these nodes. Looks at every pod, which a node that fails is worth.
    pub fn jobs_on(&self, nodes: &[Arc<str>]) -> Vec<JobKey> {
        let is_on = |worker: &Arc<Worker>| worker.node.as_ref().is_some_and(|node| nodes.contains(node));
        let seen = self.lock();
        let concerned = seen.jobs.iter().filter(|(_, objects)| objects.workers.values().any(is_on));
        concerned.map(|(key, _)| key.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn objects(&mut self, key: &JobKey) -> &mut Objects {
        self.jobs.entry(key.clone()).or_default()
    }

    fn drop_if_empty(&mut self, job: &JobKey) {
        if self.jobs.get(job).is_some_and(Objects::is_empty) {
            self.jobs.remove(job);
        }
    }
}

impl Objects {
    fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.children.is_empty() && self.workload.is_none()
    }
}

fn is_in(key: &JobKey, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| *key.namespace == *namespace)
}

/// Versions of one kind of object grow.
pub(crate) fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests;
