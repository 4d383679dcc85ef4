//! The state that all reconciles share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::events::Recorder;
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

/// The state that all reconciles share.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The rate limiter of its calls.
    pub limiter: Limiter,
    /// The cluster's settings of pods.
    pub settings: Settings,
    /// The cache of the watches.
    pub index: Arc<Index>,
    /// Which queues and gang schedulers the cluster has.
    pub discovery: Arc<Discovery>,
    /// Validated jobs.
    pub prepared: Arc<PreparedJobs>,
    /// Statuses written last.
    pub written: Arc<Written>,
    /// The recorder of Events.
    pub recorder: Recorder,
    /// The reports of trainers.
    pub reports: Arc<dyn Reports>,
    /// Whether this operator may write.
    pub leadership: watch::Receiver<bool>,
    /// Consecutive failures of each job.
    pub failures: Arc<Failures>,
    /// The metrics.
    pub metrics: Metrics,
    /// Set once all objects were seen.
    pub synced: watch::Sender<bool>,
}

impl Context {
    /// Whether this operator may write.
    pub fn is_leader(&self) -> bool {
        *self.leadership.borrow()
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, job: &Job) {
        let uid = job.uid();
        self.prepared.forget(uid);
        self.written.forget(uid);
        self.failures.forget(uid);
        self.reports.forget(&job.key());
    }
}

/// Consecutive failures of each job.
#[derive(Debug, Default)]
pub struct Failures {
    by_uid: Mutex<HashMap<String, u32>>,
}

impl Failures {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Counts a failure and says how long to wait.
    pub fn next_wait(&self, uid: &str, error: &ApplyError) -> Duration {
        let mut counts = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid.to_owned()).or_default();
        *count += 1;
        // A conflict mostly means that the watch is a moment behind.
        let doublings = if error.is_conflict() { *count - 1 } else { *count };
        backoff::doubled(Self::FIRST, doublings, Self::LONGEST)
    }

    /// Consecutive failures of a job.
    pub fn count(&self, uid: &str) -> u32 {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied().unwrap_or(0)
    }

    /// Forgets the failures of a job.
    pub fn forget(&self, uid: &str) {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
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
