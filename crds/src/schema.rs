//! Files that are generated from the types and the rules: the custom resource definition, and the reference
//! of fields.

mod crd;
mod documentation;
mod reference;

pub(crate) use crd::schema_at;
pub use crd::{custom_resource_definition, definition_yaml, spec_schema_json};
pub use reference::reference_markdown;
