//! The controller of RLTrainingJob resources: from a manifest to pods, and from pods to a status.
//!
//! ```text
//! observe -> validate -> plan -> decide -> apply -> status
//! ```
//! Decisions are pure functions of what was observed; only `apply` and the watches call the API server. There
//! are no tensors here, and no rules about manifests, which are in `rlt-api`.

pub mod apply;
mod backoff;
mod cache;
pub mod chart;
pub mod client;
pub mod context;
pub mod controller;
pub mod decide;
pub mod discovery;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod observe;
pub mod permissions;
pub mod process;
pub mod progress;
pub mod reconcile;
mod run;

pub use cache::{index, namespaces, nodes, watch, written};
pub use run::{RunError, run};
