//! The RLTrainingJob custom resource: its types, its rules, and the plan that follows from it.
//!
//! ```text
//! YAML --validate--> ValidatedJob (ResolvedSpec: defaults filled in) --plan--> groups, batches, memory
//! ```
//! One schema serves the custom resource, the file and the local run. Everything here is pure: no I/O, no
//! clock, no tensors, no client. With the feature `kube` the types also derive Kubernetes' traits, and the
//! definition and the field reference can be written.

mod cluster_only;
#[cfg(feature = "kube")]
mod crd;
#[cfg(feature = "kube")]
mod documentation;
mod exit_code;

mod manifest;
pub mod plan;
mod quantity;
mod reason;
#[cfg(feature = "kube")]
mod reference;
pub mod resolved;
mod rules;
pub mod spec;
pub mod status;
mod validate;

#[cfg(feature = "kube")]
pub use crd::{custom_resource_definition, definition_yaml};
pub use exit_code::{ExitCode, TERMINATION_MESSAGE_VARIABLE};
pub use manifest::{API_VERSION, KIND, Metadata};
pub use plan::{Budget, FailureCause};
pub use reason::Reason;
#[cfg(feature = "kube")]
pub use reference::reference_markdown;
#[cfg(feature = "kube")]
pub use spec::RLTrainingJob;
pub use validate::{Problem, ValidatedJob, validate};
