//! State that all reconciles share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::events::Reporter;
use rlt_objects::build::Settings;
use rlt_objects::job::Job;
use rlt_objects::prepare::PreparedJobs;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::apply::ApplyError;
use crate::backoff;
use crate::client::Limiter;
use crate::discovery::Discovery;
use crate::index::Index;
use crate::metrics::Metrics;
use crate::observe::Reports;
use crate::written::Written;

/// State that all reconciles share.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// Rate limiter of the client's calls.
    pub limiter: Limiter,
    /// Settings for the pods of all jobs.
    pub settings: Settings,
    /// Cache that the watches fill.
    pub index: Arc<Index>,
    /// Discovery of the cluster's queues and gang schedulers.
    pub discovery: Arc<Discovery>,
    /// Cache of validated jobs.
    pub prepared: Arc<PreparedJobs>,
    /// Statuses that were written last.
    pub written: Arc<Written>,
    /// Name of this process in Events.
    pub reporter: Reporter,
    /// Events that are being sent.
    pub events: Arc<EventTasks>,
    /// Reports of trainers.
    pub reports: Arc<dyn Reports>,
    /// Whether this process may write.
    pub leadership: watch::Receiver<bool>,
    /// Consecutive failures of each job.
    pub failures: Arc<Failures>,
    /// Metrics of the operator.
    pub metrics: Metrics,
    /// Whether all objects were listed once.
    pub synced: watch::Sender<bool>,
}

impl Context {
    /// Whether this process may write.
    pub fn is_leader(&self) -> bool {
        *self.leadership.borrow()
    }

    /// Drops the state of a deleted job.
    pub fn forget(&self, job: &Job) {
        let uid = job.uid();
        self.prepared.forget(uid);
        self.written.forget(uid);
        self.failures.forget(uid);
        self.reports.forget(&job.key());
    }

    /// Drops the state of all jobs except `jobs`. State is left behind by a reconcile that is under way while
    /// its job is deleted, and by a job that is deleted and created again while the watch is interrupted.
    pub fn retain(&self, jobs: &[Arc<Job>]) {
        let uids: HashSet<&str> = jobs.iter().map(|job| job.uid()).collect();
        let is_there = |uid: &str| uids.contains(uid);
        self.prepared.retain(is_there);
        self.written.retain(is_there);
        self.failures.retain(is_there);
    }
}

/// Number of consecutive failures of each job.
#[derive(Debug, Default)]
pub struct Failures {
    by_uid: Mutex<HashMap<String, u32>>,
}

impl Failures {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Counts a failure, and returns the time until the next try.
    pub fn next_wait(&self, uid: &str, error: &ApplyError) -> Duration {
        let mut counts = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid.to_owned()).or_default();
        *count += 1;
        // A conflict usually means that the watch is slightly behind.
        let doublings = if error.is_conflict() { *count - 1 } else { *count };
        backoff::doubled(Self::FIRST, doublings, Self::LONGEST)
    }

    /// Number of consecutive failures of a job.
    pub fn count(&self, uid: &str) -> u32 {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied().unwrap_or(0)
    }

    /// Resets the count of a job.
    pub fn forget(&self, uid: &str) {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Drops the counts of jobs whose UID does not satisfy `is_there`.
    fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| is_there(uid));
    }
}

/// Background tasks that send one Event each. They are aborted when this is dropped.
#[derive(Debug, Default)]
pub struct EventTasks {
    tasks: Mutex<JoinSet<()>>,
}

impl EventTasks {
    /// Time limit of [`Self::finish`]. It fits into the pod's grace period of 40 s together with the last
    /// call of a reconcile (30 s), the release of the Lease (3 s) and the last spans of traces (2 s).
    const TIMEOUT: Duration = Duration::from_secs(3);

    /// Sends an Event in the background.
    pub fn spawn(&self, send: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(send);
    }

    /// Waits until all Events are sent, for 3 s at most, and drops the others. Returns the number of those
    /// that were dropped.
    pub async fn finish(&self) -> usize {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.try_join_next().is_some() {}
        if !tasks.is_empty() {
            tracing::info!(num_events = tasks.len(), "waiting until the last Events are sent");
        }
        let all_sent = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Self::TIMEOUT, all_sent).await;
        tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_are_awaited_until_the_last_is_sent() {
        let (events, num_sent) = (EventTasks::default(), Arc::new(Mutex::new(0)));
        for seconds in [0, 1, 2] {
            let num_sent = num_sent.clone();
            events.spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                *num_sent.lock().unwrap() += 1;
            });
        }
        let started = Instant::now();
        assert_eq!(events.finish().await, 0);
        assert_eq!((*num_sent.lock().unwrap(), started.elapsed().as_secs()), (3, 2));
        assert_eq!(events.finish().await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_hang_are_counted_and_dropped_after_a_bounded_time() {
        let (events, is_needed) = (EventTasks::default(), Arc::new(()));
        for _ in 0..2 {
            let is_needed = is_needed.clone();
            events.spawn(async move {
                std::future::pending::<()>().await;
                drop(is_needed);
            });
        }
        events.spawn(async {});
        let started = Instant::now();
        assert_eq!(events.finish().await, 2);
        assert_eq!(started.elapsed().as_secs(), EventTasks::TIMEOUT.as_secs());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&is_needed), 1, "no Event is sent later");
    }

    #[tokio::test]
    async fn tasks_of_events_that_were_sent_are_not_stored() {
        let events = EventTasks::default();
        for _ in 0..100 {
            events.spawn(async {});
            tokio::task::yield_now().await;
        }
        assert!(events.tasks.lock().unwrap().len() < 10);
    }

    fn error(code: u16) -> ApplyError {
        let reason = if code == 409 { "Conflict" } else { "InternalError" };
        let status = kube::core::Status { code, reason: reason.into(), ..Default::default() };
        let source = kube::Error::Api(Box::new(status));
        ApplyError::Call { act: "write the status of", name: "a".into(), source }
    }

    #[test]
    fn conflicts_in_a_row_wait_longer_each_time_and_the_first_hardly_at_all() {
        let failures = Failures::default();
        let waits: Vec<_> = (0..13).map(|_| failures.next_wait("a", &error(409))).collect();
        assert_eq!(waits[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(waits.last(), Some(&Failures::LONGEST));
        failures.forget("a");
        assert_eq!(failures.next_wait("a", &error(409)), Failures::FIRST);
        assert_eq!(failures.next_wait("b", &error(500)), Failures::FIRST * 2);
    }
}
