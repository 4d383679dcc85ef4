//! The status channel between trainer and operator: its messages, its client, and the names that both sides
//! share.
//!
//! Messages are generated from `proto/channel.proto` by `make generate`. The operator authorizes and stores
//! reports; the trainer fills them.

pub mod client;
pub mod environment;
pub mod limits;

pub use messages::*;

#[rustfmt::skip]
#[expect(clippy::allow_attributes_without_reason, reason = "written by the generator")]
mod messages;

/// The audience that a token must be meant for.
pub const AUDIENCE: &str = "rltraining.dev/channel";

/// The metadata entry that carries `Bearer <token>`.
pub const AUTHORIZATION: &str = "authorization";
