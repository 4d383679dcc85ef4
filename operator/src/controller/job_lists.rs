//! Merges the watches of several namespaces into one stream of jobs for one reflector store. A store replaces
//! its whole content when a list ends, so interleaved lists of several watches would remove each other's
//! jobs.

use std::collections::{HashMap, HashSet};

use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;

use rlt_objects::job::Job;

/// The jobs that the watches have listed so far.
pub(super) struct JobLists {
    /// Namespace of each watch; `None` for all namespaces.
    namespaces: Vec<Option<String>>,
    /// Jobs of the first lists; `None` once all of these lists are complete.
    first: Option<HashMap<ObjectRef<Job>, Job>>,
    /// Watches whose first list is not complete.
    incomplete: HashSet<usize>,
    /// The jobs of active lists, by their watch.
    listed: HashMap<usize, HashSet<ObjectRef<Job>>>,
}

impl JobLists {
    pub(super) fn new(namespaces: Vec<Option<String>>) -> Self {
        let incomplete = (0..namespaces.len()).collect();
        Self { namespaces, first: Some(HashMap::new()), incomplete, listed: HashMap::new() }
    }

    /// Converts an event of the watch number `watch` to events for `store`. The first lists of all watches
    /// reach the store as one list, once all are complete. A later list of a watch becomes one change for
    /// each listed job, and a deletion for each job of the watch's namespace that is gone.
    pub(super) fn take(&mut self, watch: usize, event: Event<Job>, store: &Store<Job>) -> Vec<Event<Job>> {
        match event {
            Event::Init => {
                self.listed.insert(watch, HashSet::new());
                Vec::new()
            }
            Event::InitApply(job) => {
                self.listed.entry(watch).or_default().insert(ObjectRef::from_obj(&job));
                self.apply(job)
            }
            Event::Apply(job) => self.apply(job),
            Event::Delete(job) => match &mut self.first {
                Some(first) => {
                    first.remove(&ObjectRef::from_obj(&job));
                    Vec::new()
                }
                None => vec![Event::Delete(job)],
            },
            Event::InitDone => self.end_list(watch, store),
        }
    }

    fn apply(&mut self, job: Job) -> Vec<Event<Job>> {
        match &mut self.first {
            Some(first) => {
                first.insert(ObjectRef::from_obj(&job), job);
                Vec::new()
            }
            None => vec![Event::Apply(job)],
        }
    }

    fn end_list(&mut self, watch: usize, store: &Store<Job>) -> Vec<Event<Job>> {
        let listed = self.listed.remove(&watch).unwrap_or_default();
        let namespace = self.namespaces.get(watch).cloned().flatten();
        let is_gone = |job: &ObjectRef<Job>| {
            (namespace.is_none() || job.namespace == namespace) && !listed.contains(job)
        };
        let Some(first) = &mut self.first else {
            let gone = store.state().into_iter().filter(|job| is_gone(&ObjectRef::from_obj(&**job)));
            return gone.map(|job| Event::Delete((*job).clone())).collect();
        };
        first.retain(|job, _| !is_gone(job));
        self.complete(watch)
    }

    /// Returns the events for the store after the API server refused the list of the watch number `watch`.
    /// The store does not wait for a namespace that is watched by name, because it may be deleted.
    pub(super) fn refuse(&mut self, watch: usize) -> Vec<Event<Job>> {
        let is_named = self.namespaces.get(watch).is_some_and(Option::is_some);
        if is_named && self.first.is_some() { self.complete(watch) } else { Vec::new() }
    }

    /// Marks the first list of a watch as complete. Returns the list of all watches once none is missing.
    fn complete(&mut self, watch: usize) -> Vec<Event<Job>> {
        self.incomplete.remove(&watch);
        if !self.incomplete.is_empty() {
            return Vec::new();
        }
        let jobs = self.first.take().unwrap_or_default();
        let all = jobs.into_values().map(Event::InitApply);
        [Event::Init].into_iter().chain(all).chain([Event::InitDone]).collect()
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::{self, store::Writer};
    use serde_json::json;

    use super::*;

    struct Cluster {
        lists: JobLists,
        store: Store<Job>,
        writer: Writer<Job>,
    }

    fn cluster(namespaces: [Option<&str>; 2]) -> Cluster {
        let (store, writer) = reflector::store();
        let namespaces = namespaces.map(|namespace| namespace.map(str::to_owned)).to_vec();
        Cluster { lists: JobLists::new(namespaces), store, writer }
    }

    fn job(namespace: &str, name: &str) -> Job {
        let mut job = crate::decide::fixtures::job(&json!({}));
        job.metadata.namespace = Some(namespace.to_owned());
        job.metadata.name = Some(name.to_owned());
        job
    }

    impl Cluster {
        fn take(&mut self, watch: usize, event: Event<Job>) {
            for event in self.lists.take(watch, event, &self.store) {
                self.writer.apply_watcher_event(&event);
            }
        }

        fn list(&mut self, watch: usize, jobs: &[Job]) {
            self.take(watch, Event::Init);
            jobs.iter().for_each(|job| self.take(watch, Event::InitApply(job.clone())));
            self.take(watch, Event::InitDone);
        }

        fn names(&self) -> Vec<String> {
            let name = |job: &Job| format!("{}/{}", job.namespace(), job.name());
            let mut names: Vec<String> = self.store.state().iter().map(|job| name(job)).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn interleaved_lists_of_two_namespaces_lose_no_job() {
        let mut cluster = cluster([Some("a"), Some("b")]);
        cluster.take(0, Event::Init);
        cluster.take(0, Event::InitApply(job("a", "one")));
        cluster.take(1, Event::Init);
        cluster.take(1, Event::InitApply(job("b", "one")));
        cluster.take(0, Event::InitApply(job("a", "two")));
        cluster.take(0, Event::InitDone);
        assert!(cluster.names().is_empty(), "nothing is said before all is known");
        cluster.take(0, Event::Apply(job("a", "three")));
        cluster.take(0, Event::Delete(job("a", "one")));
        cluster.take(1, Event::InitDone);
        assert_eq!(cluster.names(), ["a/three", "a/two", "b/one"]);
    }

    #[test]
    fn a_refused_namespace_delays_no_job_of_another_and_its_jobs_follow_when_it_is_back() {
        let mut cluster = cluster([Some("a"), Some("gone")]);
        cluster.list(0, &[job("a", "one")]);
        assert!(cluster.names().is_empty());
        for event in cluster.lists.refuse(1) {
            cluster.writer.apply_watcher_event(&event);
        }
        assert_eq!(cluster.names(), ["a/one"]);
        assert!(cluster.lists.refuse(1).is_empty(), "it is refused again and again");
        cluster.list(1, &[job("gone", "two")]);
        assert_eq!(cluster.names(), ["a/one", "gone/two"]);
        let mut everywhere = self::cluster([Some("a"), None]);
        everywhere.list(0, &[]);
        assert!(everywhere.lists.refuse(1).is_empty() && everywhere.names().is_empty());
    }

    #[test]
    fn a_new_list_of_one_namespace_removes_deleted_jobs_and_no_jobs_of_another() {
        let mut cluster = cluster([Some("a"), Some("b")]);
        cluster.list(0, &[job("a", "one"), job("a", "two")]);
        cluster.list(1, &[job("b", "one")]);
        cluster.take(0, Event::Init);
        cluster.take(0, Event::InitApply(job("a", "two")));
        assert_eq!(cluster.names(), ["a/one", "a/two", "b/one"], "no list is complete");
        cluster.take(0, Event::InitApply(job("a", "new")));
        let gone = cluster.lists.take(0, Event::InitDone, &cluster.store);
        assert!(matches!(&*gone, [Event::Delete(job)] if job.name() == "one"), "{gone:?}");
        cluster.writer.apply_watcher_event(&gone[0]);
        assert_eq!(cluster.names(), ["a/new", "a/two", "b/one"]);
    }

    #[test]
    fn a_restarted_first_list_counts_from_its_last_start() {
        let mut cluster = cluster([Some("a"), None]);
        cluster.list(0, &[job("a", "one")]);
        cluster.list(0, &[job("a", "two")]);
        cluster.list(1, &[job("a", "two"), job("c", "one")]);
        assert_eq!(cluster.names(), ["a/two", "c/one"]);
        cluster.list(1, &[job("c", "one")]);
        assert_eq!(cluster.names(), ["c/one"], "a watch of all namespaces knows all jobs");
    }
}
