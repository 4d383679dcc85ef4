//! The controller of RLTrainingJob resources: from a manifest to pods, and from pods to a status.
//!
//! ```text
//! observe -> validate -> plan -> decide -> apply -> status
//! ```
//! What a job needs is decided by pure functions of what was observed; the API server is spoken to at the rim.
//! No tensors live here, and no rules about manifests: those are `rlt-api`'s.

mod args;
pub mod client;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod progress;
mod run;

pub use args::Args;
pub use run::{RunError, run};
