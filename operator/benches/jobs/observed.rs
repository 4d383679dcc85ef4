//! Reads the API server's log: when pods were created and ran, and the number of calls by user.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rlt_cluster::{Call, CallLog};

/// User of the benchmark's calls; kwok's nodes call under this name too.
const OBSERVER: &str = "admin";
/// Time without any call after which a job is settled.
const QUIET: Duration = Duration::from_millis(800);
/// Longest time that any operation here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

/// Calls in some namespaces since a point in time.
#[derive(Debug)]
pub(crate) struct Observed {
    log: CallLog,
    namespaces: HashSet<String>,
    /// Time at which the observation began.
    pub(crate) since: Timestamp,
    calls: Vec<Call>,
    ignored: Option<String>,
}

impl Observed {
    /// Begins an observation now.
    pub(crate) fn begin(mut log: CallLog, namespaces: impl IntoIterator<Item = String>) -> Self {
        log.skip().unwrap();
        Self {
            log,
            namespaces: namespaces.into_iter().collect(),
            since: Timestamp::now(),
            calls: Vec::new(),
            ignored: None,
        }
    }

    /// Excludes a pod that existed before.
    pub(crate) fn ignoring(self, pod: &str) -> Self {
        Self { ignored: Some(pod.to_owned()), ..self }
    }

    /// Reads new lines. Returns whether any user but the observer has called.
    pub(crate) fn read(&mut self) -> bool {
        let calls = self.log.new_calls().unwrap();
        let is_here = |call: &Call| self.namespaces.contains(&call.namespace) && call.verb != "watch";
        let here = calls.into_iter().filter(is_here);
        let before = self.calls.len();
        self.calls.extend(here.filter(|call| call.resource != "leases"));
        self.calls[before..].iter().any(|call| call.user != OBSERVER || call.resource == "pods")
    }

    /// Waits until there was no call for a while.
    pub(crate) async fn quiet(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.read() {
                last = Instant::now();
            }
        }
    }

    /// Waits until `num_pods` pods were created and run.
    pub(crate) async fn running(&mut self, num_pods: usize) {
        let begun = Instant::now();
        while self.running_times().len() < num_pods {
            assert!(begun.elapsed() < PATIENCE, "{} of {num_pods} pods run", self.running_times().len());
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.read();
        }
    }

    /// Milliseconds from the beginning to the creation of each new pod, in order.
    pub(crate) fn created_times(&self) -> Vec<f64> {
        let made = self.calls.iter().filter(|call| is_made(call));
        let mut times: Vec<_> = made.map(|call| self.milliseconds(&call.answered_at)).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Milliseconds from the beginning to the first status of each new pod after its creation, when it runs.
    /// Pods whose names the API server chose count from their first status that was written here.
    pub(crate) fn running_times(&self) -> Vec<f64> {
        // On a busy machine a pod may run before its creator has the answer.
        let made: HashMap<&str, &str> = self
            .calls
            .iter()
            .filter(|call| is_made(call) && !call.name.is_empty())
            .map(|call| (call.name.as_str(), call.at.as_str()))
            .collect();
        let has_names = !made.is_empty();
        let mut first: BTreeMap<&str, f64> = BTreeMap::new();
        let written = self.calls.iter().filter(|call| call.user == OBSERVER && is_status_of_pod(call));
        for call in written {
            let is_new = made.get(call.name.as_str()).is_some_and(|at| call.answered_at.as_str() >= *at);
            let is_unknown = !has_names && self.ignored.as_deref() != Some(call.name.as_str());
            if is_new || is_unknown {
                first.entry(&call.name).or_insert_with(|| self.milliseconds(&call.answered_at));
            }
        }
        let mut times: Vec<_> = first.into_values().collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Returns the calls by user, without the observer's.
    pub(crate) fn calls(&self) -> Calls {
        let mut calls = Calls::new();
        for call in self.calls.iter().filter(|call| call.user != OBSERVER) {
            let user = call.user.rsplit(':').next().unwrap_or_default().to_owned();
            let counts = calls.entry(user).or_default();
            counts[kind(call)] += 1.0;
        }
        calls
    }

    fn milliseconds(&self, time: &str) -> f64 {
        let time: Timestamp = time.parse().unwrap();
        time.duration_since(self.since).as_secs_f64() * 1e3
    }
}

/// Calls by user: reads, writes of objects, of statuses, of events.
pub(crate) type Calls = BTreeMap<String, [f64; 4]>;

fn kind(call: &Call) -> usize {
    match (call.verb.as_str(), call.resource.as_str(), call.subresource.as_str()) {
        ("get" | "list", _, _) => 0,
        (_, "events", _) => 3,
        (_, _, "status") => 2,
        _ => 1,
    }
}

fn is_made(call: &Call) -> bool {
    call.verb == "create" && call.resource == "pods" && call.subresource.is_empty() && call.code == 201
}

fn is_status_of_pod(call: &Call) -> bool {
    call.resource == "pods" && call.subresource == "status" && call.verb == "patch" && call.code == 200
}

/// Mean of several counts: the total without the scheduler's calls, and each user's as text.
pub(crate) fn mean_calls<'a>(all: impl Iterator<Item = &'a Calls>) -> (f64, String) {
    let mut sum = Calls::new();
    let mut num = 0.0;
    for calls in all {
        num += 1.0;
        for (user, counts) in calls {
            let so_far = sum.entry(user.clone()).or_default();
            so_far.iter_mut().zip(counts).for_each(|(so_far, count)| *so_far += count);
        }
    }
    sum.values_mut().flatten().for_each(|count| *count /= num);
    let others = sum.iter().filter(|(user, _)| *user != "kube-scheduler");
    (others.map(|(_, counts)| counts.iter().sum::<f64>()).sum(), in_words(&sum))
}

/// Formats each user's calls: reads, writes, statuses, events.
pub(crate) fn in_words(calls: &Calls) -> String {
    let one = |(user, counts): (&String, &[f64; 4])| {
        let [reads, writes, statuses, events] = counts.map(rounded);
        format!("{user} {} ({reads}r {writes}w {statuses}s {events}e)", rounded(counts.iter().sum()))
    };
    calls.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn rounded(count: f64) -> String {
    format!("{count:.1}").trim_end_matches('0').trim_end_matches('.').to_owned()
}
