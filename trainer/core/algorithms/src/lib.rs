//! The formulas that manifests choose by name, each declared once: losses, advantage estimators, KL
//! estimators, reward functions.
//!
//! A file has a formula, its parameters with their ranges, and its documentation (`formula!`,
//! [`reward::DeclaredReward`]). One line in the list of its family registers it: [`loss::PolicyLoss`],
//! [`advantage::AdvantageEstimator`], [`reward::RewardKind`]. The choices of the custom resource, its schema,
//! its validation rules, the field reference, and the resolution from a manifest are generated from that.
//!
//! The crate computes on slices ([`rows`]) and texts, without tensors, files or threads. `rlt-core`
//! re-exports all of it for the trainer; `rlt-api` reads the declarations.

#[macro_use]
pub mod declaration;

pub mod advantage;
pub mod kl;
pub mod kto;
pub mod loss;
pub mod pattern_error;
pub mod permutation;
pub mod preference;
pub mod reward;
pub mod reward_model;
pub mod reweighting;
pub mod rows;
pub mod whiten;
