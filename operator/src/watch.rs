//! From watch streams to the index, and from every change to the job that it concerns. A stream that fails is
//! tried again by itself: it holds up no other one.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::channel::mpsc::UnboundedSender;
use futures::channel::oneshot;
use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};

use crate::index::{Child, Index};
use crate::job::Job;
use crate::labels;
use crate::nodes::NodeState;
use crate::queue::Workload;
use crate::seen::{SeenMetadata, SeenPod};
use crate::worker::{JobKey, Worker, owner};

/// Below the idle limits of load balancers in front of API servers, which drop silent connections from 240 s
/// on.
const WATCH_SECONDS: u32 = 200;
/// Objects of one page of a list: what is decoded at once is the peak of the operator's memory.
const PAGE_SIZE: u32 = 200;

/// How objects are watched.
pub fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE)
}

/// Where changes go.
#[derive(Clone, Debug)]
pub struct Sink {
    /// What was seen.
    pub index: Arc<Index>,
    /// Jobs that something happened to.
    pub changed: UnboundedSender<ObjectRef<Job>>,
}

impl Sink {
    fn requeue(&self, key: &JobKey) {
        self.index.note_change(key);
        let job = ObjectRef::new(&key.name).within(&key.namespace);
        // Nobody listens any more: the process is about to end.
        let _ = self.changed.unbounded_send(job);
    }
}

/// Follows the pods of a namespace, or of all, for ever. `synced` hears of the first complete list.
pub async fn pods(api: Api<SeenPod>, namespace: Option<String>, sink: Sink, synced: oneshot::Sender<()>) {
    let events = watcher(api, config().labels(&labels::own_objects())).default_backoff();
    follow(events, "pods", synced, Worker::read, |change| {
        let index = &sink.index;
        match change {
            Change::Is((key, worker)) => {
                index.enter(&key, worker);
                sink.requeue(&key);
            }
            Change::IsGone((key, worker)) => {
                index.remove(&key, &worker.name, &worker.uid);
                sink.requeue(&key);
            }
            Change::Are(workers) => {
                let concerned = index.jobs();
                index.replace(namespace.as_deref(), workers);
                requeue_all(&sink, concerned);
            }
        }
    })
    .await;
}

/// Follows all nodes, and requeues the jobs on those whose state changes.
pub async fn nodes(api: Api<Node>, sink: Sink) {
    let events = watcher(api, config()).default_backoff();
    // Nobody waits for nodes: where they cannot be seen, jobs run all the same.
    let (listed, _) = oneshot::channel();
    follow(events, "nodes", listed, read_node, |change| {
        let nodes = &sink.index.nodes;
        let changed = match change {
            Change::Is((name, state)) => {
                if nodes.enter(&name, state) {
                    vec![name]
                } else {
                    Vec::new()
                }
            }
            Change::IsGone((name, _)) => {
                nodes.remove(&name);
                vec![name]
            }
            Change::Are(all) => nodes.replace(all.into_iter().collect()),
        };
        if !changed.is_empty() {
            sink.index.jobs_on(&changed).iter().for_each(|key| sink.requeue(key));
        }
    })
    .await;
}

/// Follows one kind of a job's other objects, by their metadata alone.
pub async fn children<K>(
    api: Api<SeenMetadata<K>>,
    child: Child,
    namespace: Option<String>,
    sink: Sink,
    synced: oneshot::Sender<()>,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Send + 'static,
{
    let events = watcher(api, config().labels(&labels::own_objects())).default_backoff();
    let read = |object: &SeenMetadata<K>| read_child(&object.metadata);
    follow(events, "children", synced, read, |change| {
        let index = &sink.index;
        match change {
            Change::Is((key, digest)) => index.enter_child(&key, child, digest),
            Change::IsGone((key, _)) => {
                index.remove_child(&key, child);
                sink.requeue(&key);
            }
            Change::Are(listed) => {
                index.replace_children(namespace.as_deref(), child, listed);
                requeue_all(&sink, index.jobs());
            }
        }
    })
    .await;
}

/// Follows what a queue says about jobs, for ever.
pub async fn workloads(
    api: Api<DynamicObject>,
    namespace: Option<String>,
    sink: Sink,
    synced: oneshot::Sender<()>,
) {
    let events = watcher(api, config().labels(&labels::own_objects())).default_backoff();
    follow(events, "workloads", synced, Workload::read, |change| {
        let index = &sink.index;
        match change {
            Change::Is((key, workload)) => {
                index.enter_workload(&key, workload);
                sink.requeue(&key);
            }
            Change::IsGone((key, workload)) => {
                index.remove_workload(&key, &workload.uid);
                sink.requeue(&key);
            }
            Change::Are(workloads) => {
                let concerned = index.jobs();
                index.replace_workloads(namespace.as_deref(), workloads);
                requeue_all(&sink, concerned);
            }
        }
    })
    .await;
}

fn requeue_all(sink: &Sink, before: Vec<JobKey>) {
    let concerned: HashSet<_> = before.into_iter().chain(sink.index.jobs()).collect();
    concerned.iter().for_each(|key| sink.requeue(key));
}

fn read_node(node: &Node) -> Option<(Arc<str>, NodeState)> {
    Some((node.metadata.name.as_deref()?.into(), NodeState::read(node)))
}

/// An object belongs to a job by its owner, or, where it is to outlive the job, by its labels.
fn read_child(metadata: &ObjectMeta) -> Option<(JobKey, Option<String>)> {
    let digest = metadata.annotations.as_ref().and_then(|all| all.get(labels::CONTENT_DIGEST)).cloned();
    let by_labels = || {
        let label = |name| metadata.labels.as_ref()?.get(name);
        Some(JobKey {
            uid: label(labels::JOB_UID)?.as_str().into(),
            namespace: metadata.namespace.as_deref()?.into(),
            name: label(labels::JOB_NAME)?.as_str().into(),
        })
    };
    owner(metadata).or_else(by_labels).map(|key| (key, digest))
}

/// What a watch tells.
enum Change<T> {
    /// An object is like this.
    Is(T),
    /// An object is gone, which was like this.
    IsGone(T),
    /// These are all.
    Are(Vec<T>),
}

/// Reads every object as it arrives, so that of a long list no more is ever held than what is kept of it.
async fn follow<K: Send, T: Send>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    what: &'static str,
    synced: oneshot::Sender<()>,
    read: impl Fn(&K) -> Option<T> + Send,
    mut take: impl FnMut(Change<T>) + Send,
) {
    let mut synced = Some(synced);
    let mut listed = Vec::new();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => {
                if let Some(seen) = read(&object) {
                    take(Change::Is(seen));
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(seen) = read(&object) {
                    take(Change::IsGone(seen));
                }
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.extend(read(&object)),
            Ok(Event::InitDone) => {
                take(Change::Are(std::mem::take(&mut listed)));
                if let Some(synced) = synced.take() {
                    let _ = synced.send(());
                }
            }
            Err(error) => tracing::warn!(what, %error, "a watch failed and is begun anew"),
        }
    }
}
