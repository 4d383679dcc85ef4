//! What every look at a job shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::events::Recorder;
use tokio::sync::watch;

use crate::apply::ApplyError;
use crate::build::Settings;
use crate::client::Limiter;
use crate::discovery::Discovery;
use crate::index::Index;
use crate::metrics::Metrics;
use crate::observe::Reports;
use crate::prepare::PreparedJobs;
use crate::written::Written;

/// What every look at a job shares.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Whose turn it is to call it.
    pub limiter: Limiter,
    /// What the cluster decides about pods.
    pub settings: Settings,
    /// What the watches have seen.
    pub index: Arc<Index>,
    /// Which queues and gang schedulers the cluster has.
    pub discovery: Arc<Discovery>,
    /// Validated jobs.
    pub prepared: Arc<PreparedJobs>,
    /// Statuses written last.
    pub written: Arc<Written>,
    /// Where Events go.
    pub recorder: Recorder,
    /// What trainers report.
    pub reports: Arc<dyn Reports>,
    /// Whether this operator may write.
    pub leadership: watch::Receiver<bool>,
    /// How often a look at each job failed in a row.
    pub failures: Arc<Failures>,
    /// What is counted.
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
    pub fn forget(&self, uid: &str) {
        self.prepared.forget(uid);
        self.written.forget(uid);
        self.failures.forget(uid);
        self.reports.forget(uid);
    }
}

/// How often a look at each job failed in a row.
#[derive(Debug, Default)]
pub struct Failures {
    by_uid: Mutex<HashMap<String, u32>>,
}

impl Failures {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Counts a failure and says how long to wait.
    pub fn next_wait(&self, uid: &str, error: &ApplyError) -> Duration {
        if error.is_conflict() {
            return Self::FIRST;
        }
        let mut counts = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid.to_owned()).or_default();
        *count += 1;
        (Self::FIRST * 2u32.saturating_pow(*count)).min(Self::LONGEST)
    }

    /// How often it failed in a row.
    pub fn count(&self, uid: &str) -> u32 {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied().unwrap_or(0)
    }

    /// Forgets the failures of a job.
    pub fn forget(&self, uid: &str) {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}
