//! Failures of the store.

use std::io;

/// A failed operation on the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The port is in use, or there is no network.
    #[error("failed to serve a store at port {port}")]
    Serve {
        /// Port of the server; 0 for any.
        port: u16,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The value under a name is not what this rank expects.
    #[error("the store holds {got:?} under {name}, expected {expected}")]
    Value {
        /// Name of the value.
        name: String,
        /// Description of the expected value.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The server cannot do what was requested.
    #[error("the store refuses {act} {name}: {why}")]
    Refused {
        /// Verb of the request, such as "to set".
        act: &'static str,
        /// Name of the value.
        name: String,
        /// Reason that the server gave.
        why: String,
    },
    /// The server is that of another attempt.
    #[error("this rank is of attempt {ours}, but the store is of attempt {theirs}")]
    OtherAttempt {
        /// Attempt of this rank.
        ours: u64,
        /// Attempt of the server.
        theirs: u64,
    },
    /// The server does not have the key of this rank, or this rank has none.
    #[error("the store cannot be trusted, or does not trust this rank: {0}")]
    Unproven(&'static str),
    /// The server refused the connection, for the reason that it gave.
    #[error("the store refuses this connection: {0}")]
    TurnedAway(String),
    /// The server closed the connection before it had greeted.
    #[error(
        "the store closed the connection at its greeting: it ends, has too many connections, or is of an older \
         release than this rank"
    )]
    Closed(#[source] io::Error),
    /// The connection failed, or there was no answer in time.
    #[error("the store does not answer")]
    Lost(#[source] io::Error),
}
