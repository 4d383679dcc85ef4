//! The statuses that were written last: the watch takes a moment to send them back, and until then the store holds an
//! older one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rlt_api::status::RLTrainingJobStatus;

use crate::index::version;
use crate::job::Job;

/// A status with the version of the object that it stands in.
#[derive(Clone, Debug)]
pub struct Current {
    /// The status.
    pub status: RLTrainingJobStatus,
    /// The object's version.
    pub resource_version: String,
}

/// The statuses that were written last, by the job's UID.
#[derive(Debug, Default)]
pub struct Written {
    by_uid: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// Until the watch has sent it back.
    ahead: Option<Current>,
    written_at: Instant,
}

impl Written {
    /// The newest status that is known. `None` when the job's own cannot be read.
    pub fn current(&self, job: &Job) -> Option<Current> {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(job.uid()) {
            let is_ahead =
                |ahead: &Current| version(&ahead.resource_version) > version(job.resource_version());
            match entry.ahead.take().filter(is_ahead) {
                Some(ahead) => {
                    entry.ahead = Some(ahead.clone());
                    return Some(ahead);
                }
                None => entry.ahead = None,
            }
        }
        let status = job.status.as_ref().ok()?.clone();
        Some(Current { status, resource_version: job.resource_version().to_owned() })
    }

    /// Notes a status that the API server has taken.
    pub fn note(&self, uid: &str, current: Current) {
        let entry = Entry { ahead: Some(current), written_at: Instant::now() };
        self.lock().insert(uid.to_owned(), entry);
    }

    /// How long it is until this time will have passed since the last write.
    pub fn wait(&self, uid: &str, interval: Duration) -> Option<Duration> {
        let since = self.lock().get(uid)?.written_at.elapsed();
        interval.checked_sub(since).filter(|wait| !wait.is_zero())
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
