//! The rollout engine on the fixtures of every family: what it writes is what the actor would write, whatever
//! runs beside it, wherever the cache puts it and however often it sleeps.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "rollout/adapter.rs"]
mod adapter;
#[path = "rollout/equality.rs"]
mod equality;
#[path = "rollout/fixture.rs"]
mod fixture;
#[path = "rollout/life.rs"]
mod life;
#[path = "fixtures/models.rs"]
mod models;
#[path = "rollout/quantized.rs"]
mod quantized;
#[path = "rollout/ranks.rs"]
mod ranks;
#[path = "rollout/routes.rs"]
mod routes;
#[path = "rollout/stopping.rs"]
mod stopping;
#[path = "rollout/tensor_parallel.rs"]
mod tensor_parallel;
