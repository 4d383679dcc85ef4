//! Status channel between trainer and operator: its messages, its client, and the names that both sides use.
//!
//! Messages are generated from `proto/channel.proto` by `make generate`. The operator authorizes and stores
//! reports; the trainer fills them.

pub mod client;
pub mod environment;
pub mod limits;
pub mod termination;

pub use messages::*;

#[rustfmt::skip]
#[expect(clippy::allow_attributes_without_reason, reason = "written by the generator")]
mod messages;

/// Audience of the service account tokens that the operator accepts.
pub const AUDIENCE: &str = "rltraining.dev/channel";

/// Metadata entry with `Bearer <token>`.
pub const AUTHORIZATION: &str = "authorization";
