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

/// The durations of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Silence after which a holder counts as gone.
    pub valid_for: Duration,
    /// Age of the last renewal at which the leader stops.
    pub renew_within: Duration,
    /// Between two renewals.
    pub renew_every: Duration,
    /// After a renewal that failed, and after the first failure to become the leader; that wait doubles with
    /// each.
    pub retry_after: Duration,
    /// For one call; one of a leader never lasts longer than its term.
    pub call_timeout: Duration,
}

impl Default for Timing {
    /// Twelve renewals a minute; a standby has taken over 15 s after a crash.
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

/// Which Lease, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The holder's identity; two processes that run at the same time must never share it.
    pub identity: String,
    /// How patient.
    pub timing: Timing,
}

/// Why a leader lost its Lease, or why no leader can be elected.
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

/// An election that continues in the background.
#[derive(Debug)]
pub struct Election {
    leadership: watch::Receiver<bool>,
    release: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), LeaseError>>,
}

impl Election {
    /// Becomes a candidate, whose `term` is put off with each renewal.
    pub fn start(client: Client, candidate: Candidate, term: Term) -> Self {
        let api = Api::<Lease>::namespaced(client, &candidate.namespace);
        let (leading, leadership) = watch::channel(false);
        let (release, released) = oneshot::channel();
        let task = tokio::spawn(Elector::new(api, candidate, leading, term).run(released));
        Self { leadership, release: Some(release), task }
    }

    /// Whether this process leads, now and in the future. It is checked right before each write.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Waits until leading is over for good, which calls for the end of the process.
    pub async fn lost(&mut self) -> LeaseError {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => LeaseError::Ended,
        }
    }

    /// Gives the Lease up, so that another replica leads at once. To be called when nothing is written any
    /// more.
    pub async fn release(mut self) {
        if let Some(release) = self.release.take() {
            let _ = release.send(());
        }
        if let Ok(Err(error)) = (&mut self.task).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to release the lease");
        }
    }
}

/// Without a release the Lease expires, as after a crash.
impl Drop for Election {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
