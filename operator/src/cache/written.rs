//! Cache of the statuses that this process wrote last. Until the watch returns them, the reflector store
//! holds older ones.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::job::Job;
use rlt_objects::seen::version;
use tokio::time::Instant;

/// A status with the resource version of its object.
#[derive(Clone, Debug)]
pub struct Current {
    /// The newest status of the job, which may still wait to be written.
    pub status: RLTrainingJobStatus,
    /// Resource version of the object.
    pub resource_version: String,
    /// Time since which the job's first status waits to be written; `None` if it does not wait.
    pub deferred_since: Option<Instant>,
}

/// Newest status of each job that was written or waits to be written, by the job's UID.
#[derive(Debug, Default)]
pub struct Written {
    by_uid: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Status that was written or deferred, kept until the watch returns it.
    ahead: Option<Box<Current>>,
    written_at: Option<Instant>,
    /// Time since which a change that is not urgent waits to be written.
    held_since: Option<Instant>,
    /// Whether the API server has accepted a write under the resource version that this process knows.
    is_confirmed: bool,
}

impl Current {
    /// Whether this status is newer than the one in the reflector store.
    fn is_ahead_of(&self, job: &Job) -> bool {
        match self.deferred_since {
            Some(_) => job.status.as_ref().is_ok_and(|status| status.conditions.is_empty()),
            None => version(&self.resource_version) > version(job.resource_version()),
        }
    }

    /// Returns the last status about which Events were published. While this status waits to be written, that
    /// is the status of the reflector store.
    pub fn published<'a>(&'a self, job: &'a Job) -> &'a RLTrainingJobStatus {
        match (self.deferred_since, &job.status) {
            (Some(_), Ok(stored)) => stored,
            _ => &self.status,
        }
    }
}

impl Written {
    /// Returns the newest status of a job: one that was written or deferred, else that of the reflector
    /// store. `None` when the store's status cannot be read.
    pub fn current(&self, job: &Job) -> Option<Current> {
        let mut entries = self.lock();
        let ahead = entries.get_mut(job.uid()).and_then(|entry| {
            entry.ahead.take_if(|ahead| !ahead.is_ahead_of(job));
            entry.ahead.as_deref().cloned()
        });
        let resource_version = job.resource_version().to_owned();
        match ahead {
            Some(ahead) if ahead.deferred_since.is_some() => Some(Current { resource_version, ..ahead }),
            Some(ahead) => Some(ahead),
            None => {
                let status = job.status.as_ref().ok()?.clone();
                Some(Current { status, resource_version, deferred_since: None })
            }
        }
    }

    /// Records a status that was written.
    pub fn note(&self, uid: &str, current: Current) {
        let (ahead, written_at) = (Some(current.into()), Some(Instant::now()));
        let entry = Entry { ahead, written_at, held_since: None, is_confirmed: true };
        self.lock().insert(uid.to_owned(), entry);
    }

    /// Whether this process knows the newest status of a job. The watch of a process that becomes the leader
    /// may be behind the writes of its predecessor.
    pub fn is_confirmed(&self, uid: &str) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.is_confirmed)
    }

    /// Records that this process knows the newest status of a job.
    pub fn confirm(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().is_confirmed = true;
    }

    /// Records that the outcome of a status write is not known.
    pub fn doubt(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.is_confirmed = false;
        }
    }

    /// Records a first status that is yet to be written.
    pub fn defer(&self, uid: &str, status: RLTrainingJobStatus, since: Instant) {
        let current = Current { status, resource_version: String::new(), deferred_since: Some(since) };
        self.lock().insert(uid.to_owned(), Entry { ahead: Some(current.into()), ..Entry::default() });
    }

    /// Number of jobs whose first status is not written yet.
    pub fn num_deferred(&self) -> usize {
        let is_deferred =
            |entry: &&Entry| entry.ahead.as_ref().is_some_and(|ahead| ahead.deferred_since.is_some());
        self.lock().values().filter(is_deferred).count()
    }

    /// Drops writes that the watch has returned.
    pub fn drop_observed(&self, job: &Job) {
        if let Some(entry) = self.lock().get_mut(job.uid()) {
            entry.ahead.take_if(|ahead| !ahead.is_ahead_of(job));
        }
    }

    /// Returns the time until the next write is due: `interval` after the last write, and at least `held`
    /// after the first change that waits. `None` if a write is due now.
    pub fn wait(&self, uid: &str, interval: Duration, held: Duration) -> Option<Duration> {
        let mut entries = self.lock();
        let entry = entries.get_mut(uid)?;
        let since_write = interval.saturating_sub(entry.written_at?.elapsed());
        let held_since = *entry.held_since.get_or_insert_with(Instant::now);
        let wait = since_write.max(held.saturating_sub(held_since.elapsed()));
        (!wait.is_zero()).then_some(wait)
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Drops the statuses of jobs whose UID is not among the existing ones.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| is_there(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_job_without_a_status_does_not_wait() {
        let written = Written::default();
        assert_eq!(written.wait("a", SECOND, SECOND), None, "an unknown job");
        written.defer("a", RLTrainingJobStatus::default(), Instant::now());
        assert_eq!(written.wait("a", SECOND, SECOND), None, "a job whose first status waits");
        let current = Current {
            status: RLTrainingJobStatus::default(),
            resource_version: "1".into(),
            deferred_since: None,
        };
        written.note("a", current);
        assert_eq!(written.wait("a", SECOND, SECOND), Some(SECOND));
    }
}
