//! The controller of RLTrainingJob resources: from a manifest to pods, and from pods to a status.
//!
//! ```text
//! observe -> validate -> plan -> decide -> apply -> status
//! ```
//! Decisions are pure functions of what was observed; only `apply` and the watches call the API server. No
//! tensors live here, and no rules about manifests: those are `rlt-api`'s.

pub mod apply;
mod args;
mod backoff;
pub mod build;
pub mod chart;
pub mod client;
pub mod context;
pub mod controller;
pub mod decide;
pub mod discovery;
pub mod health;
pub mod index;
pub mod job;
pub mod labels;
pub mod lease;
pub mod metrics;
pub mod nodes;
pub mod observe;
pub mod permissions;
pub mod pod_defaults;
pub mod pod_template;
pub mod prepare;
pub mod privileges;
pub mod process;
pub mod progress;
pub mod queue;
pub mod reconcile;
mod run;
pub mod seen;
pub mod watch;
pub mod worker;
pub mod worker_id;
pub mod written;

pub use args::{Args, PullPolicy};
pub use run::{RunError, run};
