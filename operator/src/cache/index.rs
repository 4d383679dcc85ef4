//! The cache of the watches, by job: pods, reduced to the fields that decisions need, the digests of a job's
//! other children and which of these are being deleted, and its Workload. The cost of a lookup depends on the
//! size of the job only.
//!
//! The key of a job is namespace, name and UID together: an object in another namespace with a job's UID or
//! our labels belongs to a job that does not exist.
//!
//! Objects that the operator itself created are entered at once, without waiting for the watch.
//!
//! Reflector stores would take too much memory: a pod takes 0.4 KiB here, and 5.0 KiB in a store, even with
//! only the metadata and status that `SeenPod` reads. A store would also need a separate index by job.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::Stream;
use rlt_objects::node_signals::NodeSignals;
use rlt_objects::pod_defaults::PodDefaults;
use rlt_objects::queue::Workload;
use rlt_objects::seen::version;
use rlt_objects::worker::{JobKey, Worker};
use rlt_objects::worker_id::GroupName;
use tokio::sync::watch;

use crate::namespaces::{Namespaces, changes};
use crate::nodes::Nodes;

/// Maximum number of UIDs of deleted pods that are kept, so that a late answer to the creation of a pod does
/// not enter it again.
const MAX_GONE: usize = 4096;

/// A kind of child that a job has besides its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// The ServiceAccount of the pods.
    ServiceAccount,
    /// The ConfigMap with the manifest that pods read.
    ConfigMap,
    /// The Service with the DNS name of a group's first worker.
    Service,
    /// The EndpointSlice of that Service, with the worker's address.
    Endpoint,
    /// The PersistentVolumeClaim of the run folder.
    Claim,
    /// The NetworkPolicy of the pods.
    NetworkPolicy,
    /// The PodGroup of an attempt. It is not watched, because it is created before the pods.
    PodGroup,
}

/// Identifier of a child among the children of its job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId {
    /// Kind of the child.
    pub child: Child,
    /// Name of the child's group of workers; the first group's name for a child of the whole job.
    pub group: GroupName,
}

impl From<Child> for ChildId {
    fn from(child: Child) -> Self {
        Self { child, group: GroupName::default() }
    }
}

/// The children of a job besides its pods, each with the digest of its content, if it has one.
pub type Children = BTreeMap<ChildId, Option<String>>;

/// Cached fields of a child of a job that is not a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildEntry {
    /// Identifier of the child among the children of its job.
    pub id: ChildId,
    /// Digest of the child's content, if it has one.
    pub digest: Option<String>,
    /// Whether the child has a deletion timestamp.
    pub is_deleting: bool,
}

impl ChildEntry {
    /// Returns the entry of a child that the operator has written.
    pub fn written(id: ChildId, digest: Option<String>) -> Self {
        Self { id, digest, is_deleting: false }
    }
}

/// An object that the index holds for its job.
pub trait Entry: Sized {
    /// Kind of the object, where one type has several kinds; a list replaces all objects of its kind.
    type Kind: Copy + Send + Sync;
    /// Whether the operator enters an object of this type as soon as it has created the object, perhaps
    /// during a list that lacks it.
    const ENTERED_EARLY: bool = false;

    /// Whether this version of the object can change a decision. A deletion always can.
    fn changes_decisions(&self) -> bool {
        true
    }

    /// Enters or updates the object, unless the index has a newer version.
    fn enter(self, objects: &mut Objects);

    /// Removes the object, unless the index has another one of its name.
    fn remove(&self, objects: &mut Objects);

    /// Removes all objects of a kind.
    fn clear(kind: Self::Kind, objects: &mut Objects);

    /// UID by which the index refuses a deleted object; `None` for types whose objects are never entered
    /// late.
    fn uid(&self) -> Option<&Arc<str>> {
        None
    }

    /// Resource version of the object; only read with [`Self::ENTERED_EARLY`].
    fn version(&self) -> u64 {
        0
    }

    /// Returns the job's objects of this type; only called with [`Self::ENTERED_EARLY`].
    fn all(_: &Objects) -> Vec<Self> {
        Vec::new()
    }
}

impl Entry for Worker {
    type Kind = ();
    const ENTERED_EARLY: bool = true;

    fn enter(self, objects: &mut Objects) {
        let is_older =
            |known: &Arc<Self>| known.uid == self.uid && known.resource_version > self.resource_version;
        if !objects.workers.get(&self.name).is_some_and(is_older) {
            objects.workers.insert(self.name.clone(), Arc::new(self));
        }
    }

    fn remove(&self, objects: &mut Objects) {
        if objects.workers.get(&self.name).is_some_and(|known| known.uid == self.uid) {
            objects.workers.remove(&self.name);
        }
    }

    fn clear((): (), objects: &mut Objects) {
        objects.workers.clear();
    }

    fn uid(&self) -> Option<&Arc<str>> {
        Some(&self.uid)
    }

    fn version(&self) -> u64 {
        self.resource_version
    }

    fn all(objects: &Objects) -> Vec<Self> {
        objects.workers.values().map(|worker| (**worker).clone()).collect()
    }
}

impl Entry for Workload {
    type Kind = ();

    fn enter(self, objects: &mut Objects) {
        let is_older = |known: &Arc<Self>| {
            known.uid == self.uid && version(&known.resource_version) > version(&self.resource_version)
        };
        if !objects.workload.as_ref().is_some_and(is_older) {
            objects.workload = Some(Arc::new(self));
        }
    }

    fn remove(&self, objects: &mut Objects) {
        objects.workload.take_if(|known| known.uid == self.uid);
    }

    fn clear((): (), objects: &mut Objects) {
        objects.workload = None;
    }
}

impl Entry for ChildEntry {
    type Kind = Child;

    fn changes_decisions(&self) -> bool {
        self.is_deleting
    }

    fn enter(self, objects: &mut Objects) {
        // A deletion cannot be taken back, so the mark stays: the answer to a write of the operator may be
        // older than the version that the watch has shown.
        if self.is_deleting {
            objects.deleting.insert(self.id.clone());
        }
        objects.children.insert(self.id, self.digest);
    }

    fn remove(&self, objects: &mut Objects) {
        objects.children.remove(&self.id);
        objects.deleting.remove(&self.id);
    }

    fn clear(child: Child, objects: &mut Objects) {
        objects.children.retain(|id, _| id.child != child);
        objects.deleting.retain(|id| id.child != child);
    }
}

/// The cache of all watched objects, by job.
#[derive(Debug, Default)]
pub struct Index {
    /// Cache of the states of all nodes.
    pub nodes: Nodes,
    /// Defaults for the pods of jobs, by namespace.
    pub defaults: PodDefaults,
    /// The watched namespaces, and whether all their objects have been listed.
    pub namespaces: Namespaces,
    /// Notified when every job is to be requeued.
    all_changed: watch::Sender<()>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    jobs: HashMap<JobKey, Objects>,
    gone: VecDeque<Arc<str>>,
    /// UIDs of the pods that were entered since a list began, by the namespace of the list.
    since_list: HashMap<Option<String>, HashSet<Arc<str>>>,
}

impl Seen {
    /// Adds to a namespace's list the objects that were entered since the list began and are newer than every
    /// listed object.
    fn with_newer<T: Entry>(
        &mut self,
        namespace: Option<&str>,
        mut listed: Vec<(JobKey, T)>,
    ) -> Vec<(JobKey, T)> {
        if !T::ENTERED_EARLY {
            return listed;
        }
        let newest = listed.iter().map(|(_, object)| object.version()).max().unwrap_or(0);
        let entered = self.since_list.remove(&namespace.map(str::to_owned)).unwrap_or_default();
        for (key, objects) in self.jobs.iter().filter(|(key, _)| is_in(key, namespace)) {
            let is_newer = |object: &T| {
                object.uid().is_some_and(|uid| entered.contains(uid)) && object.version() > newest
            };
            let newer = T::all(objects).into_iter().filter(is_newer);
            listed.extend(newer.map(|object| (key.clone(), object)));
        }
        listed
    }
}

/// The objects of one job.
#[derive(Debug, Default)]
pub struct Objects {
    workers: BTreeMap<Arc<str>, Arc<Worker>>,
    children: Children,
    /// Children that have a deletion timestamp.
    deleting: BTreeSet<ChildId>,
    workload: Option<Arc<Workload>>,
    /// Time of the first change since the job was last reconciled; `None` without a change.
    changed_at: Option<Instant>,
}

impl Index {
    /// Returns an empty index; `signals` decide which nodes are impaired.
    pub fn new(signals: NodeSignals) -> Self {
        Self { nodes: Nodes::new(signals), ..Self::default() }
    }

    /// Returns the pods of a job, sorted by name.
    pub fn workers(&self, job: &JobKey) -> Vec<Arc<Worker>> {
        let seen = self.lock();
        seen.jobs.get(job).map(|objects| objects.workers.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the children of a job besides its pods.
    pub fn children(&self, job: &JobKey) -> Children {
        self.lock().jobs.get(job).map(|objects| objects.children.clone()).unwrap_or_default()
    }

    /// Whether a child of a job exists and is being deleted. Finalizers may keep it for any time.
    pub fn is_deleting(&self, job: &JobKey, child: Child) -> bool {
        self.lock().jobs.get(job).is_some_and(|objects| objects.deleting.contains(&child.into()))
    }

    /// Returns the Workload of a job.
    pub fn workload(&self, job: &JobKey) -> Option<Arc<Workload>> {
        self.lock().jobs.get(job).and_then(|objects| objects.workload.clone())
    }

    /// Requeues every job.
    pub fn requeue_all(&self) {
        self.all_changed.send_replace(());
    }

    /// Returns a stream with an item for each call of [`Self::requeue_all`].
    pub fn all_changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        changes(self.all_changed.subscribe())
    }

    /// Records the time of the job's first change since its last reconcile.
    pub fn note_change(&self, job: &JobKey) {
        if let Some(objects) = self.lock().jobs.get_mut(job) {
            objects.changed_at.get_or_insert_with(Instant::now);
        }
    }

    /// Returns how long the first change since the last reconcile has waited, and forgets the change.
    pub fn since_change(&self, job: &JobKey) -> Option<Duration> {
        self.lock().jobs.get_mut(job)?.changed_at.take().map(|at| at.elapsed())
    }

    /// Enters an object of a job, unless a newer version is cached or the object was deleted.
    pub fn enter<T: Entry>(&self, key: &JobKey, object: T) {
        let mut seen = self.lock();
        if object.uid().is_some_and(|uid| seen.gone.contains(uid)) {
            return;
        }
        if let Some(uid) = object.uid() {
            for (_, entered) in seen.since_list.iter_mut().filter(|(of, _)| is_in(key, of.as_deref())) {
                entered.insert(uid.clone());
            }
        }
        object.enter(seen.jobs.entry(key.clone()).or_default());
    }

    /// Removes an object of a job that was deleted.
    pub fn remove<T: Entry>(&self, key: &JobKey, object: &T) {
        let mut seen = self.lock();
        if let Some(uid) = object.uid() {
            seen.gone.push_back(uid.clone());
            if seen.gone.len() > MAX_GONE {
                seen.gone.pop_front();
            }
        }
        if let Some(objects) = seen.jobs.get_mut(key) {
            object.remove(objects);
            if objects.is_empty() {
                seen.jobs.remove(key);
            }
        }
    }

    /// Records that a list of pods begins in `namespace`, or in all namespaces. The list may lack pods that
    /// are entered from now on.
    pub fn begin_list(&self, namespace: Option<&str>) {
        self.lock().since_list.insert(namespace.map(str::to_owned), HashSet::new());
    }

    /// Replaces all objects of a kind in `namespace`, or in all namespaces, by those of a list. Pods that
    /// were created while the list was read stay if they are newer than every listed object.
    pub fn replace<T: Entry>(&self, namespace: Option<&str>, kind: T::Kind, listed: Vec<(JobKey, T)>) {
        let mut seen = self.lock();
        let listed = seen.with_newer(namespace, listed);
        for (_, objects) in seen.jobs.iter_mut().filter(|(key, _)| is_in(key, namespace)) {
            T::clear(kind, objects);
        }
        for (key, object) in listed {
            object.enter(seen.jobs.entry(key).or_default());
        }
        seen.jobs.retain(|_, objects| !objects.is_empty());
    }

    /// Returns every job that has cached objects.
    pub fn jobs(&self) -> Vec<JobKey> {
        self.lock().jobs.keys().cloned().collect()
    }

    /// Returns the jobs that have a pod on one of `nodes`. Looks at every cached pod, but is only called when
    /// a node changes.
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

impl Objects {
    fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.children.is_empty() && self.workload.is_none()
    }
}

fn is_in(key: &JobKey, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| *key.namespace == *namespace)
}

#[cfg(test)]
mod tests;
