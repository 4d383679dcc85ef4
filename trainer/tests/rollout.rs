//! The rollout engine on the fixtures of every family: it samples what the actor would sample, for any batch,
//! any cache blocks and any number of sleeps.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "rollout/adapter.rs"]
mod adapter;
#[path = "rollout/commands.rs"]
mod commands;
#[path = "rollout/equality.rs"]
mod equality;
#[path = "rollout/fixture.rs"]
mod fixture;
#[path = "rollout/life.rs"]
mod life;
#[path = "rollout/narrow.rs"]
mod narrow;
#[path = "rollout/quantized.rs"]
mod quantized;
#[path = "rollout/ranks.rs"]
mod ranks;
#[path = "rollout/routes.rs"]
mod routes;
#[path = "rollout/script.rs"]
mod script;
#[path = "rollout/stopping.rs"]
mod stopping;
#[path = "rollout/tensor_parallel.rs"]
mod tensor_parallel;

use crate::models;
