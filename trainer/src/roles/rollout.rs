//! The rollout: samples completions with the actor's weights on [`rlt_engine::Engine`], and exchanges their
//! routes between ranks.

mod role;
mod routes;

pub use role::RolloutRole;
