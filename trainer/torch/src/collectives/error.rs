//! Errors of collectives and of the rendezvous, which name the missing ranks.

use std::fmt;
use std::time::Duration;

use super::store::StoreError;

/// A failed collective operation.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// The tensors do not fit the operation; found before anything was sent.
    #[error("{operation} of group {group}: expected {expected}, got {got}")]
    Argument {
        /// Name of the operation.
        operation: &'static str,
        /// Name of the group.
        group: String,
        /// Expected value of the argument, in words.
        expected: String,
        /// Given value of the argument.
        got: String,
    },
    /// NCCL cannot be loaded, so a tensor on a GPU cannot be sent.
    #[error("group {group}: NCCL cannot be loaded: {message}")]
    NoNccl {
        /// Name of the group.
        group: String,
        /// Message of the dynamic loader.
        message: String,
    },
    /// A rank was lost or timed out.
    #[error("{operation} (number {sequence} of group {group}) failed: {diagnosis} ({message})")]
    Failed {
        /// Name of the operation.
        operation: &'static str,
        /// Name of the group.
        group: String,
        /// Sequence number of the operation within the group, from 1.
        sequence: u64,
        /// Ranks for which the operation waited.
        diagnosis: Box<Diagnosis>,
        /// Message of the transport.
        message: String,
    },
}

/// The ranks that a failed operation waited for, as global ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// Ranks without a heartbeat: killed, stopped, or disconnected.
    pub silent: Vec<usize>,
    /// Ranks that are alive but had not started the operation, with the sequence number of the group's last
    /// operation that they had started.
    pub behind: Vec<(usize, u64)>,
    /// Whether the store does not answer, because the process that serves it is gone.
    pub store_lost: bool,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.silent.is_empty() {
            parts.push(format!("no sign of life from {}", ranks(&self.silent)));
        }
        for (rank, sequence) in &self.behind {
            parts.push(format!("rank {rank} has not come to it (its last was number {sequence})"));
        }
        if self.store_lost {
            parts.push("the store does not answer".to_owned());
        }
        if parts.is_empty() {
            parts.push("every rank is alive and has come to it".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

/// Formats ranks as `rank 3`, or `ranks 1, 3`.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// A failed rendezvous: ranks that did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// No server answers at the store's address.
    #[error("no rendezvous at {address} within {} s", timeout.as_secs_f64())]
    Unreachable {
        /// Host and port of the store.
        address: String,
        /// Duration for which connecting was tried.
        timeout: Duration,
        /// Error of the last attempt to connect.
        source: std::io::Error,
    },
    /// This rank is of a different attempt than the store.
    #[error("this rank is of attempt {ours}, but the rendezvous is of attempt {theirs}")]
    OtherAttempt {
        /// Attempt of this rank.
        ours: u64,
        /// Attempt of the store.
        theirs: u64,
    },
    /// This rank and the store have different numbers of ranks.
    #[error("this rank expects {ours} ranks, the rendezvous {theirs}")]
    OtherWorldSize {
        /// Number of ranks with which this rank was started.
        ours: usize,
        /// Number of ranks with which the store was started.
        theirs: usize,
    },
    /// Two processes have the same rank.
    #[error("rank {rank} has joined already")]
    RankTaken {
        /// Rank that was already taken.
        rank: usize,
    },
    /// Some ranks did not join.
    #[error("{} did not join within {} s", ranks(missing), timeout.as_secs_f64())]
    Missing {
        /// Ranks that did not join.
        missing: Vec<usize>,
        /// Duration of the wait.
        timeout: Duration,
    },
    /// A rank failed before all had joined.
    #[error("{} had not joined when one failed: {cause}", ranks(missing))]
    Failed {
        /// Ranks that had not joined.
        missing: Vec<usize>,
        /// The rank that failed, and its error.
        cause: String,
    },
    /// An argument is invalid.
    #[error("{name}: expected {expected}, got {got}")]
    Argument {
        /// Name of the argument.
        name: &'static str,
        /// Expected value of the argument, in words.
        expected: String,
        /// Given value of the argument.
        got: String,
    },
    /// An operation of the store failed.
    #[error("the rendezvous' store failed")]
    Store(#[source] StoreError),
    /// The members of a group did not connect.
    #[error("failed to connect the ranks of group {group}")]
    Connect {
        /// Name of the group.
        group: String,
        /// Error of libtorch.
        source: crate::Error,
    },
}

impl From<StoreError> for RendezvousError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::OtherAttempt { ours, theirs } => Self::OtherAttempt { ours, theirs },
            other => Self::Store(other),
        }
    }
}

impl RendezvousError {
    /// Whether the server that answered may be that of an earlier attempt, which is about to exit: it said
    /// so, or closed the connection before it answered.
    pub(super) fn may_be_of_earlier_attempt(&self) -> bool {
        match self {
            Self::OtherAttempt { ours, theirs } => theirs < ours,
            Self::Store(StoreError::Lost(_) | StoreError::Closed(_)) => true,
            _ => false,
        }
    }
}
