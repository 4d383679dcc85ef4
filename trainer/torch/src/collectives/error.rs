//! Errors between ranks, with the missing ranks. There is no recovery here.

use std::fmt;
use std::time::Duration;

use super::store::StoreError;

/// Why a collective failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Tensors that do not fit the operation; found before anything was sent.
    #[error("{operation} of group {group}: expected {expected}, got {got}")]
    Argument {
        /// What was tried.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// What the argument must be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// A tensor on a GPU cannot be sent.
    #[error("group {group}: NCCL cannot be loaded: {message}")]
    NoNccl {
        /// The group's name.
        group: String,
        /// The system's own words.
        message: String,
    },
    /// A rank was lost, or too late.
    #[error("{operation} (number {sequence} of group {group}) failed: {diagnosis} ({message})")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// The how many-th operation of the group it was, from 1.
        sequence: u64,
        /// Which ranks it waited for.
        diagnosis: Box<Diagnosis>,
        /// The transport's own words.
        message: String,
    },
}

/// Which ranks a failed operation waited for, by their global numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// Ranks without a sign of life: killed, stopped, or cut off.
    pub silent: Vec<usize>,
    /// Ranks that are alive but had not started the operation, with the last operation of the group that they
    /// had started.
    pub behind: Vec<(usize, u64)>,
    /// The store, which would know, does not answer: the process that serves it is gone.
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

/// `rank 3`, or `ranks 1, 3`.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// Why ranks did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// No server answers at the store's address.
    #[error("no rendezvous at {address} within {} s", timeout.as_secs_f64())]
    Unreachable {
        /// Host and port.
        address: String,
        /// How long it was tried.
        timeout: Duration,
        /// The last attempt's failure.
        source: std::io::Error,
    },
    /// This rank is of another attempt than the store.
    #[error("this rank is of attempt {ours}, but the rendezvous is of attempt {theirs}")]
    OtherAttempt {
        /// This rank's attempt.
        ours: u64,
        /// The store's.
        theirs: u64,
    },
    /// This rank and the store do not agree on the number of ranks.
    #[error("this rank expects {ours} ranks, the rendezvous {theirs}")]
    OtherWorldSize {
        /// The number that this rank was started with.
        ours: usize,
        /// The number that the store was started with.
        theirs: usize,
    },
    /// Two processes have one rank.
    #[error("rank {rank} has joined already")]
    RankTaken {
        /// The rank.
        rank: usize,
    },
    /// Some ranks did not join.
    #[error("{} did not join within {} s", ranks(missing), timeout.as_secs_f64())]
    Missing {
        /// The missing ranks.
        missing: Vec<usize>,
        /// How long was waited.
        timeout: Duration,
    },
    /// A rank has failed before all had joined.
    #[error("{} had not joined when one failed: {cause}", ranks(missing))]
    Failed {
        /// The missing ranks.
        missing: Vec<usize>,
        /// The rank that failed, and why.
        cause: String,
    },
    /// A value that cannot work.
    #[error("{name}: expected {expected}, got {got}")]
    Argument {
        /// Of what.
        name: &'static str,
        /// What it must be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// The store failed.
    #[error("the rendezvous' store failed")]
    Store(#[from] StoreError),
    /// The members of a group did not connect.
    #[error("failed to connect the ranks of group {group}")]
    Connect {
        /// The group's name.
        group: String,
        /// libtorch's error.
        source: crate::Error,
    },
}

impl RendezvousError {
    /// Whether the server that answered may be that of an earlier attempt, which is about to end: it said so,
    /// or went away before it said anything.
    pub(super) fn may_be_of_earlier_attempt(&self) -> bool {
        match self {
            Self::OtherAttempt { ours, theirs } => theirs < ours,
            Self::Store(StoreError::Lost(_)) => true,
            _ => false,
        }
    }
}
