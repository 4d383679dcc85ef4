//! The trainer's binary: roles, recipes, and the run around them.
//!
//! ```text
//! manifest -> setup -> train -> recipe: sample -> judge -> score -> estimate -> update
//! ```
//! Every rank runs the same step and computes its share (`rlt-parallel`). Roles (actor, reference, critic,
//! rollout) are objects within each rank, not processes. This crate contains neither Kubernetes nor unsafe
//! code; unsafe code is in `rlt-torch`.

pub mod commands;
pub mod observe;
pub mod recipes;
pub mod roles;
pub mod run;

#[cfg(test)]
mod tests;
