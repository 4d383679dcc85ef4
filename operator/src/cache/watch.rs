//! The watches: every change is entered into the index and requeues its job. Each watch is retried on its own
//! and delays no other.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::channel::mpsc::UnboundedSender;
use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::node_signals::NodeSignals;
use rlt_objects::pod_defaults::{self, NamespaceDefaults};
use rlt_objects::worker::{JobKey, owner};
use serde::de::DeserializeOwned;

use crate::index::{Child, ChildEntry, ChildId, Entry, Index};
use crate::namespaces::FirstList;
use crate::nodes::NodeState;

/// Timeout of a watch in seconds. It is below the idle limits of load balancers in front of API servers,
/// which drop silent connections from 240 s on.
const WATCH_SECONDS: u32 = 200;
/// Number of objects on one page of a list: a decoded page is the peak of the operator's memory.
const PAGE_SIZE: u32 = 200;

/// The configuration of every watch.
pub fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE)
}

/// Receivers of changes: the index, and the queue of jobs to reconcile.
#[derive(Clone, Debug)]
pub struct Sink {
    /// Cache of the objects.
    pub index: Arc<Index>,
    /// Jobs to requeue.
    pub changed: UnboundedSender<ObjectRef<Job>>,
}

impl Sink {
    fn requeue(&self, key: &JobKey) {
        self.index.note_change(key);
        let job = ObjectRef::new(&key.name).within(&key.namespace);
        // Without a receiver the process is about to end.
        let _ = self.changed.unbounded_send(job);
    }
}

/// Watches one kind of the jobs' objects in `namespace`, or in all namespaces, for ever. `read` returns an
/// object's job and its cached fields. The first complete list is reported to `first`.
pub async fn objects<K, T>(
    api: Api<K>,
    namespace: Option<String>,
    what: &'static str,
    kind: T::Kind,
    read: impl Fn(&K) -> Option<(JobKey, T)> + Send,
    sink: Sink,
    first: FirstList,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    T: Entry + Send,
{
    let events = watcher(api, config().labels(&labels::own_objects())).default_backoff();
    follow(events, what, first, read, |change| {
        let index = &sink.index;
        match change {
            Change::Applied((key, object)) => {
                let changes_decisions = object.changes_decisions();
                index.enter(&key, object);
                if changes_decisions {
                    sink.requeue(&key);
                }
            }
            Change::Deleted((key, object)) => {
                index.remove(&key, &object);
                sink.requeue(&key);
            }
            Change::ListBegins if T::ENTERED_EARLY => index.begin_list(namespace.as_deref()),
            Change::ListBegins => {}
            Change::Listed(objects) => {
                let concerned = index.jobs();
                index.replace(namespace.as_deref(), kind, objects);
                requeue_all(&sink, concerned);
            }
        }
    })
    .await;
}

/// Watches all nodes, and requeues the jobs that have a pod on a node whose state changes.
pub async fn nodes(api: Api<Node>, sink: Sink) {
    let events = watcher(api, config()).default_backoff();
    // Nothing waits for nodes: an operator that may not read them reconciles all the same.
    let read = |node: &Node| read_node(node, &sink.index.nodes.signals);
    follow(events, "nodes", FirstList::default(), read, |change| {
        let nodes = &sink.index.nodes;
        let changed = match change {
            Change::Applied((name, state)) => {
                if nodes.enter(&name, state) {
                    vec![name]
                } else {
                    Vec::new()
                }
            }
            Change::Deleted((name, _)) => {
                nodes.remove(&name);
                vec![name]
            }
            Change::ListBegins => return,
            Change::Listed(all) => nodes.replace(all.into_iter().collect()),
        };
        if !changed.is_empty() {
            sink.index.jobs_on(&changed).iter().for_each(|key| sink.requeue(key));
        }
    })
    .await;
}

/// Follows the ConfigMaps with defaults for the pods of a namespace's jobs, for ever. Every change is
/// reported to `changed`.
pub async fn pod_defaults(
    api: Api<ConfigMap>,
    namespace: Option<String>,
    index: Arc<Index>,
    changed: UnboundedSender<()>,
    first: FirstList,
) {
    let by_name = config().fields(&format!("metadata.name={}", pod_defaults::NAME));
    let events = watcher(api, by_name).default_backoff();
    let read = |map: &ConfigMap| Some((map.metadata.namespace.clone()?, NamespaceDefaults::read(map)));
    follow(events, "pod defaults", first, read, |change| {
        match change {
            Change::Applied((namespace, defaults)) => index.defaults.set(&namespace, Some(defaults)),
            Change::Deleted((namespace, _)) => index.defaults.set(&namespace, None),
            Change::ListBegins => return,
            Change::Listed(listed) => index.defaults.replace(namespace.as_deref(), listed),
        }
        // The receiver is closed: the process is about to end.
        let _ = changed.unbounded_send(());
    })
    .await;
}

fn requeue_all(sink: &Sink, before: Vec<JobKey>) {
    let concerned: HashSet<_> = before.into_iter().chain(sink.index.jobs()).collect();
    concerned.iter().for_each(|key| sink.requeue(key));
}

fn read_node(node: &Node, signals: &NodeSignals) -> Option<(Arc<str>, NodeState)> {
    Some((node.metadata.name.as_deref()?.into(), NodeState::read(node, signals)))
}

/// Reads a child from its metadata. Its job is the owner; labels name the job of a child that outlives it.
pub fn read_child(child: Child, metadata: &ObjectMeta) -> Option<(JobKey, ChildEntry)> {
    let digest = metadata.annotations.as_ref().and_then(|all| all.get(labels::CONTENT_DIGEST)).cloned();
    let by_labels = || {
        let label = |name| metadata.labels.as_ref()?.get(name);
        Some(JobKey {
            uid: label(labels::JOB_UID)?.as_str().into(),
            namespace: metadata.namespace.as_deref()?.into(),
            name: label(labels::JOB_NAME)?.as_str().into(),
        })
    };
    let group = metadata.labels.as_ref().and_then(|labels| labels.get(labels::WORKER_GROUP));
    let group = group.map(|name| name.as_str().into()).unwrap_or_default();
    let id = ChildId { child, group };
    let is_deleting = metadata.deletion_timestamp.is_some();
    owner(metadata).or_else(by_labels).map(|key| (key, ChildEntry { id, digest, is_deleting }))
}

/// A change that a watch reports.
enum Change<T> {
    /// An object was created or changed.
    Applied(T),
    /// An object was deleted.
    Deleted(T),
    /// A list of all objects begins.
    ListBegins,
    /// A complete list.
    Listed(Vec<T>),
}

/// Passes the changes of a watch to `take`. Every object is reduced by `read` as it is received, so that a
/// long list never takes more memory than the cached fields.
async fn follow<K: Send, T: Send>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    what: &'static str,
    mut first: FirstList,
    read: impl Fn(&K) -> Option<T> + Send,
    mut take: impl FnMut(Change<T>) + Send,
) {
    let mut listed = Vec::new();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => {
                if let Some(seen) = read(&object) {
                    take(Change::Applied(seen));
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(seen) = read(&object) {
                    take(Change::Deleted(seen));
                }
            }
            Ok(Event::Init) => {
                listed.clear();
                take(Change::ListBegins);
            }
            Ok(Event::InitApply(object)) => listed.extend(read(&object)),
            Ok(Event::InitDone) => {
                take(Change::Listed(std::mem::take(&mut listed)));
                first.listed();
            }
            Err(error) => {
                first.failed(what, &error);
                tracing::warn!(what, %error, "watch failed; restarting it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_retained_claim_requeues_the_job_of_its_labels_when_it_is_deleted() {
        let read = |deletion_timestamp: Value| {
            let labels = json!({(labels::JOB_UID): "u", (labels::JOB_NAME): "job"});
            let metadata = json!({
                "name": "job-storage", "namespace": "team", "labels": labels,
                "annotations": {(labels::CONTENT_DIGEST): "digest"}, "deletionTimestamp": deletion_timestamp,
            });
            read_child(Child::Claim, &serde_json::from_value(metadata).unwrap()).unwrap()
        };
        let (key, present) = read(Value::Null);
        assert_eq!((&*key.uid, &*key.namespace, &*key.name), ("u", "team", "job"));
        assert_eq!(present, ChildEntry::written(Child::Claim.into(), Some("digest".into())));
        assert!(!present.changes_decisions());
        let (key_of_deleted, deleted) = read(json!("2026-01-01T00:00:00Z"));
        assert_eq!(key_of_deleted, key);
        assert!(deleted.is_deleting && deleted.changes_decisions());
    }
}
