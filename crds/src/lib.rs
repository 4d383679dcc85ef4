//! The RLTrainingJob custom resource: its types, its rules, and the table of what cannot be combined.
//!
//! ```text
//! YAML --validate--> ValidatedJob (ResolvedSpec: defaults filled in) --rlt-plan--> groups, batches, memory
//! ```
//! One schema serves the custom resource, the file and the local run. Everything here is pure: no I/O, no
//! clock, no tensors, no client. With the feature `kube` the types also derive Kubernetes' traits, and the
//! definition and the field reference can be written.

mod cluster_only;
pub mod conflicts;
mod defaults;
pub mod degrees;
mod documents;
pub mod failure;
mod presets;
pub mod queue;
mod reason;
pub mod resolved;
mod rules;
#[cfg(feature = "kube")]
mod schema;
pub mod spec;
pub mod status;
pub mod symptoms;
mod validate;
mod variables;
mod warnings;

pub use conflicts::support_markdown;
pub use defaults::{Defaults, MergedSpec, Origin, merge};
use documents::{manifest, overlay, quantity, yaml};
pub use failure::{Budget, ExitCode, FailureCause, TERMINATION_MESSAGE_VARIABLE};
pub use manifest::{API_VERSION, KIND, Metadata};
pub use overlay::overlay;
pub use quantity::value as quantity_value;
pub use reason::Reason;
#[cfg(feature = "kube")]
pub use schema::{custom_resource_definition, definition_yaml, reference_markdown, spec_schema_json};
#[cfg(feature = "kube")]
pub use spec::RLTrainingJob;
pub use validate::{
    Problem, ValidatedJob, check_schema, read_accepted, read_known_fields, validate, validate_with,
};
pub use variables::is_secret_name;
pub use warnings::Warning;
pub use yaml::{read_yaml, read_yaml_documents};

/// Whether only the operator may set a variable of workers.
pub fn is_reserved_variable(name: &str) -> bool {
    rules::is_variable_reserved(name)
}

/// Whether only the operator may mount something at a folder of workers, or below it.
pub fn is_reserved_folder(path: &str) -> bool {
    rules::is_reserved_folder(path)
}
