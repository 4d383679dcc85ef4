//! Leader election: a Lease that one replica holds and renews, while the others stand by.
//!
//! A holder counts as gone when its Lease has not changed for a while by the watching process's clock; clocks
//! of two machines are never compared. The leader stops before another may begin: it gives up when its last
//! renewal is older than [`Timing::renew_within`], also while a call is in flight, and then the process must
//! end. A standby makes no calls; it watches. [`Election::release`] hands the Lease over at once.

mod elector;
mod term;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use elector::Elector;
pub use term::Term;

/// Durations of the leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time without a change after which a holder counts as gone.
    pub valid_for: Duration,
    /// Age of the last renewal at which the leader stops.
    pub renew_within: Duration,
    /// Interval of renewals.
    pub renew_every: Duration,
    /// Wait after a failed renewal, and after the first failed acquisition; it doubles with each further one.
    pub retry_after: Duration,
    /// Timeout of one call; for a leader it is cut short by the end of its term.
    pub call_timeout: Duration,
}

impl Default for Timing {
    /// Renews twelve times a minute; a standby takes over within 15 s after a crash.
    fn default() -> Self {
        Self {
            valid_for: Duration::from_secs(14),
            renew_within: Duration::from_secs(10),
            renew_every: Duration::from_secs(5),
            retry_after: Duration::from_secs(1),
            call_timeout: Duration::from_secs(3),
        }
    }
}

/// Lease and identity of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of the holder; two processes that run at the same time must never share it.
    pub identity: String,
    /// Service of the same release, whose labels and annotations a new Lease gets; `None` without a release.
    pub service: Option<String>,
    /// Timing of the leader election.
    pub timing: Timing,
}

/// The leader lost its Lease, or no leader can be elected.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum LeaseError {
    #[error("the lease was taken over by {holder:?}")]
    TakenOver { holder: String },
    #[error("the lease could not be renewed within {seconds} s")]
    NotRenewed { seconds: f64, source: Option<kube::Error> },
    #[error("the election has ended unexpectedly")]
    Ended,
}

/// Leader election that runs in the background.
#[derive(Debug)]
pub struct Election {
    leadership: watch::Receiver<bool>,
    release: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), LeaseError>>,
}

impl Election {
    /// Becomes a candidate; each renewal extends `term`.
    pub fn start(client: Client, candidate: Candidate, term: Term) -> Self {
        let api = Api::<Lease>::namespaced(client, &candidate.namespace);
        let (leading, leadership) = watch::channel(false);
        let (release, released) = oneshot::channel();
        let task = tokio::spawn(Elector::new(api, candidate, leading, term).run(released));
        Self { leadership, release: Some(release), task }
    }

    /// Returns a receiver of whether this process leads. Check its value right before each write.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Waits until this process can no longer lead; then it must end.
    pub async fn lost(&mut self) -> LeaseError {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => LeaseError::Ended,
        }
    }

    /// Releases the Lease, so that another replica leads at once. Call it after the last write.
    pub async fn release(mut self) {
        if let Some(release) = self.release.take() {
            let _ = release.send(());
        }
        if let Ok(Err(error)) = (&mut self.task).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to release the lease");
        }
    }
}

/// Stops the election without a release: the Lease expires, as after a crash.
impl Drop for Election {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
