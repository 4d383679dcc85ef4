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

    /// Drops the state of all jobs but these. A reconcile that is under way while its job is deleted leaves
    /// some behind, and so does a job that is made again while the watch is interrupted.
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

    /// Drops the counts of jobs whose UID is none of those that are there.
    fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
