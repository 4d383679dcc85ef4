//! Code that the operator and `rlctl` share: jobs and workers as the API server has them, the objects that a
//! job needs, and the settings of an installation.
//!
//! This crate is pure: it does not call the API server, wait, or decide what happens next; `rlt-operator`
//! does.

pub mod args;
pub mod build;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod job;
pub mod labels;
pub mod node_signals;
pub mod pod_defaults;
mod pod_settings;
pub mod pod_template;
pub mod prepare;
pub mod privileges;
pub mod queue;
pub mod release_metadata;
pub mod seen;
pub mod served;
pub mod worker;
pub mod worker_id;
