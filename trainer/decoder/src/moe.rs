//! Mixtures of experts: router, experts with their adapters, load balance and the log of routes.

pub(super) mod balance;
pub(super) mod expert_lora;
pub(super) mod experts;
pub(super) mod routes;
