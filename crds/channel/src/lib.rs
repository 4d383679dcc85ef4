//! The status channel between trainer and operator: its messages, its client, and the names that both sides
//! share.
//!
//! Messages are generated from `proto/channel.proto`. The operator authorizes and stores reports; the trainer
//! fills them.

pub mod client;
pub mod environment;
pub mod limits;

pub use generated::*;

/// The output of `build.rs`; its comments are those of the proto file.
#[expect(clippy::allow_attributes_without_reason, reason = "written by the generator")]
mod generated {
    tonic::include_proto!("rltraining.channel.v1alpha1");
}

/// The audience that a token must be meant for.
pub const AUDIENCE: &str = "rltraining.dev/channel";

/// The metadata entry that carries `Bearer <token>`.
pub const AUTHORIZATION: &str = "authorization";
