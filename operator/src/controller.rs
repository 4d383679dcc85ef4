//! The watches that requeue jobs, and the loop that reconciles them.

mod job_lists;

use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures::channel::mpsc;
use futures::stream::{self, StreamExt as _};
use futures::{FutureExt as _, Stream, future};
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DynamicObject;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::predicates;
use kube::runtime::reflector;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{Predicate as _, PredicateConfig, WatchStreamExt as _};
use kube::{Api, Client, Resource};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::queue::Workload;
use rlt_objects::seen::{SeenMetadata, SeenPod};
use rlt_objects::served;
use rlt_objects::worker::Worker;
use tokio::task::JoinSet;

use self::job_lists::JobLists;
use crate::context::Context;
use crate::discovery::Discovery;
use crate::index::Child;
use crate::namespaces::{FirstList, is_forbidden};
use crate::reconcile::{reconcile, retry};
use crate::watch::{self, Sink};

/// Number of deleted jobs after which the state of jobs that are gone is swept.
const SWEEP_EVERY: usize = 256;

/// Reconciles jobs until `stop`; active reconciles are finished, and then Events are sent, for 3 s at most.
pub async fn run(
    context: Arc<Context>,
    namespaces: &[String],
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (stop, events) = (stop.shared(), context.events.clone());
    let (store, writer) = reflector::store();
    let stopped_early = {
        let (store, stop) = (store.clone(), stop.clone());
        async move {
            stop.await;
            // The controller would wait for its first list of jobs for ever.
            if store.wait_until_ready().now_or_never().is_some() {
                future::pending().await
            }
        }
    };
    tokio::select! {
        () = work(context, namespaces, concurrency, store, writer, stop) => {}
        () = stopped_early => {}
    }
    let num_lost = events.finish().await;
    if num_lost > 0 {
        tracing::warn!(num_lost, "Events are lost because the API server did not take them in time");
    }
}

async fn work(
    context: Arc<Context>,
    namespaces: &[String],
    concurrency: u16,
    store: reflector::Store<Job>,
    writer: reflector::store::Writer<Job>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    // The controller empties these channels at once, into a queue with one entry for each job. Until the
    // caches are synced they have one item for each object of the lists and each change since.
    let (changed, changes) = mpsc::unbounded();
    let sink = Sink { index: context.index.clone(), changed };
    let mut watches = JoinSet::new();
    context.discovery.wait_until_known(&context.client).await;
    let seen = &context.index.namespaces;
    follow_objects(&context.client, namespaces, &sink, &mut watches);
    follow_queues(&context, namespaces, &sink, &mut watches);
    let (changed, defaults_change) = mpsc::unbounded();
    for (api, namespace) in apis::<ConfigMap>(&context.client, namespaces) {
        let (first, index) = (seen.expect(namespace.as_deref()), context.index.clone());
        watches.spawn(watch::pod_defaults(api, namespace, index, changed.clone(), first));
    }
    let jobs = jobs(&context, namespaces, writer);
    // Before the caches are synced a job would look like one without pods.
    seen.wait_until_known().await;
    context.metrics.set_refused(seen.refused());
    tracing::info!("caches are synced");
    context.synced.send_replace(true);
    let promoted = promotions(context.leadership.clone());
    let queues = queues_appear(context.discovery.clone());
    let (namespaces_seen, metrics) = (context.index.namespaces.clone(), context.metrics.clone());
    let seen_change = seen.changes().inspect(move |()| metrics.set_refused(namespaces_seen.refused()));
    Controller::for_stream(jobs, store)
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(changes)
        .reconcile_on(context.reports.changes())
        .reconcile_all_on(stream::select_all([
            promoted.boxed(),
            queues.boxed(),
            defaults_change.boxed(),
            seen_change.boxed(),
            context.index.all_changes().boxed(),
        ]))
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, context)
        .for_each(|_| future::ready(()))
        .await;
}

/// Requeues all jobs when this operator becomes the leader: a standby reconciles nothing.
fn promotions(leadership: tokio::sync::watch::Receiver<bool>) -> impl Stream<Item = ()> + Send {
    stream::unfold(leadership, |mut leadership| async move {
        leadership.changed().await.ok()?;
        let leads = *leadership.borrow_and_update();
        Some((leads, leadership))
    })
    .filter_map(|leads| future::ready(leads.then_some(())))
}

/// Requeues all jobs when Kueue is installed after the operator started: jobs may be waiting for it.
fn queues_appear(discovery: Arc<Discovery>) -> impl Stream<Item = ()> + Send {
    let is_new = !discovery.served().has_workloads;
    stream::once(async move { discovery.kueue().await }).filter(move |()| future::ready(is_new))
}

/// Watches Workloads as soon as Kueue is installed; if it is installed now, jobs wait for the first complete
/// lists.
fn follow_queues(context: &Arc<Context>, namespaces: &[String], sink: &Sink, watches: &mut JoinSet<()>) {
    let client = &context.client;
    let resource = served::workloads();
    let everywhere = || vec![(Api::all_with(client.clone(), &resource), None)];
    let of = |namespace: &String| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        (api, Some(namespace.clone()))
    };
    let apis = if namespaces.is_empty() { everywhere() } else { namespaces.iter().map(of).collect() };
    let is_installed = context.discovery.served().has_workloads;
    for (api, namespace) in apis {
        let seen = &context.index.namespaces;
        let first = if is_installed { seen.expect(namespace.as_deref()) } else { FirstList::default() };
        let (discovery, sink) = (context.discovery.clone(), sink.clone());
        watches.spawn(async move {
            discovery.kueue().await;
            watch::objects(api, namespace, "workloads", (), Workload::read, sink, first).await;
        });
    }
}

/// Returns a stream of jobs that are new, that users changed, or that another controller such as MultiKueue
/// has marked as ended. The operator's own status writes requeue nothing.
fn jobs(
    context: &Arc<Context>,
    namespaces: &[String],
    writer: reflector::store::Writer<Job>,
) -> impl Stream<Item = Result<Job, watcher::Error>> + Send + use<> {
    let context = context.clone();
    let (apis, namespaces): (Vec<_>, Vec<_>) = apis::<Job>(&context.client, namespaces).into_iter().unzip();
    let watches = apis.into_iter().enumerate().map(|(idx, api)| {
        let events = watcher(api, watch::config()).default_backoff().modify(forget_the_manifest_as_applied);
        events.map(move |event| (idx, event)).boxed()
    });
    let (mut lists, store) = (JobLists::new(namespaces), writer.as_reader());
    let (known, mut num_deleted) = (store.clone(), 0_usize);
    stream::select_all(watches)
        .map(move |(idx, event)| match event {
            Ok(event) => {
                lists.take(idx, event, &store).into_iter().map(Ok::<_, watcher::Error>).collect::<Vec<_>>()
            }
            Err(error) => {
                let released = if is_forbidden(&error) { lists.refuse(idx) } else { Vec::new() };
                released.into_iter().map(Ok).chain([Err(error)]).collect()
            }
        })
        .flat_map(stream::iter)
        .inspect(move |event| match event {
            Ok(Event::Delete(job)) => {
                context.forget(job);
                num_deleted += 1;
                if num_deleted.is_multiple_of(SWEEP_EVERY) {
                    context.retain(&known.state());
                }
            }
            Ok(Event::Apply(job) | Event::InitApply(job)) => context.written.drop_observed(job),
            _ => {}
        })
        .reflect(writer)
        .applied_objects()
        .filter(|job| {
            if let Err(error) = job {
                tracing::warn!(what = "jobs", %error, "watch failed; restarting it");
            }
            future::ready(job.is_ok())
        })
        .predicate_filter(
            predicates::generation
                .combine(predicates::labels)
                .combine(predicates::annotations)
                .combine(end_elsewhere),
            PredicateConfig::default(),
        )
}

/// Returns a hash of the completion time of a job that another controller runs; `None` for any other job.
fn end_elsewhere(job: &Job) -> Option<u64> {
    let ended = job.status.as_ref().ok()?.completion_time.as_ref()?;
    let mut hasher = DefaultHasher::new();
    ended.hash(&mut hasher);
    (!job.is_managed_here()).then(|| hasher.finish())
}

/// Drops kubectl's last-applied annotation, which is as long as the specification.
fn forget_the_manifest_as_applied(job: &mut Job) {
    if let Some(annotations) = &mut job.metadata.annotations {
        annotations.remove(labels::LAST_APPLIED);
    }
}

/// Watches pods and the other children of jobs.
fn follow_objects(client: &Client, namespaces: &[String], sink: &Sink, watches: &mut JoinSet<()>) {
    let seen = &sink.index.namespaces;
    watches.spawn(watch::nodes(Api::<Node>::all(client.clone()), sink.clone()));
    for (api, namespace) in apis::<SeenPod>(client, namespaces) {
        let first = seen.expect(namespace.as_deref());
        watches.spawn(watch::objects(api, namespace, "pods", (), Worker::read, sink.clone(), first));
    }
    macro_rules! follow {
        ($kind:ty, $child:expr) => {
            for (api, namespace) in apis::<SeenMetadata<$kind>>(client, namespaces) {
                let first = seen.expect(namespace.as_deref());
                let read = |object: &SeenMetadata<$kind>| watch::read_child($child, &object.metadata);
                let watched = watch::objects(api, namespace, "children", $child, read, sink.clone(), first);
                watches.spawn(watched);
            }
        };
    }
    follow!(ServiceAccount, Child::ServiceAccount);
    follow!(ConfigMap, Child::ConfigMap);
    follow!(Service, Child::Service);
    follow!(EndpointSlice, Child::Endpoint);
    follow!(PersistentVolumeClaim, Child::Claim);
    follow!(NetworkPolicy, Child::NetworkPolicy);
}

/// Returns one API for each namespace, or one for all if `namespaces` is empty.
fn apis<K>(client: &Client, namespaces: &[String]) -> Vec<(Api<K>, Option<String>)>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    if namespaces.is_empty() {
        return vec![(Api::all(client.clone()), None)];
    }
    let of = |namespace: &String| (Api::namespaced(client.clone(), namespace), Some(namespace.clone()));
    namespaces.iter().map(of).collect()
}
