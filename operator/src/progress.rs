//! Server of the status channel: authentication and authorization of reports, and the newest report of every
//! job.
//!
//! ```text
//! rank -- TLS, token --> service -> does the token claim to be a worker of that job, attempt, rank?
//!                           |    -> token review (cached): is the claim true?  -> does the report fit?
//!                           v
//!                        Reports -- released at most once in 10 s --> reconcile -> status
//! ```
//! Launchers of pods that may be assigned to another attempt poll the same server for their assignment
//! (`launchers.rs`), and those of jobs with several pods for the key of their rendezvous (`keys.rs`).
//!
//! Only the leader serves: it announces itself in the EndpointSlice of the channel's Service. Otherwise
//! standbys would have to forward reports. Every report contains the full state, so the new leader needs only
//! one report of each rank.
//!
//! The names of variables, files and the audience are in [`rlt_channel`]. Other modules write the status.

mod bounds;
mod certificates;
mod connections;
mod endpoint;
mod identity;
mod keys;
mod last_report;
mod launchers;
mod rate;
mod release;
mod reports;
mod secret;
mod server;
mod service;
mod shares;
mod stalls;
mod status;
mod token;

pub use certificates::{CertificateError, Certificates};
pub(crate) use connections::{Connections, Counted};
pub use endpoint::{EndpointError, announce, keep_announced};
pub use identity::{Authenticator, PodIdentity, ReviewError, Reviewer, TokenReviewer};
pub use keys::RendezvousKeys;
pub use reports::{JobReport, Reports};
pub use secret::{CachedCertificates, SecretError, certificates};
pub use server::{ServeError, serve};
pub use service::{ChannelService, FollowingPod, ReportingWorker, UnknownWorker, Workers};
pub(crate) use shares::Limits;
pub use status::KnownWorkers;
