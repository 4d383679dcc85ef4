//! The RLTrainingJob custom resource: its types, its rules, and the plan that follows from it.
//!
//! ```text
//! YAML --validate--> ValidatedJob (ResolvedSpec: every default filled in) --plan--> worker groups, batches, memory
//! ```
//! One schema serves the custom resource, the file and the local run. Everything here is pure: no I/O, no clock,
//! no tensors, no client.

mod exit_code;
mod manifest;
pub mod plan;
pub mod resolved;
pub mod spec;
pub mod status;
mod validate;

pub use exit_code::ExitCode;
pub use manifest::{API_VERSION, KIND, Metadata};
pub use validate::{Problem, ValidatedJob, validate};
