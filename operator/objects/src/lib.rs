//! What the operator and `rlctl` share: jobs and workers as the API server has them, the objects that a job
//! needs, and the settings of an installation.
//!
//! Pure: nothing here calls the API server, waits or decides what happens next; `rlt-operator` does.

pub mod args;
pub mod build;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod job;
pub mod labels;
pub mod node_signals;
pub mod pod_defaults;
pub mod pod_template;
pub mod prepare;
pub mod privileges;
pub mod queue;
pub mod seen;
pub mod served;
pub mod worker;
pub mod worker_id;
