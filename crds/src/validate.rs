//! From text to a job that cannot be wrong, or all that is wrong with it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::{API_VERSION, KIND, Metadata};
use crate::resolved::ResolvedSpec;
use crate::spec::RLTrainingJobSpec;

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The field, such as `spec.rollout.topP` or `spec.rewards.functions[1].pattern`; empty for the whole text.
    pub path: String,
    /// The value that stands there, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// What is wrong.
    pub message: String,
    /// What would be right: a range, choices, a field's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A job whose manifest holds every rule, with all defaults filled in. Only [`validate`] makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedJob {
    metadata: Metadata,
    spec: ResolvedSpec,
}

impl ValidatedJob {
    /// Name of the job.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Name, namespace, labels, annotations.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The specification with every default filled in.
    pub fn spec(&self) -> &ResolvedSpec {
        &self.spec
    }
}

/// Reads a manifest and fills in its defaults.
///
/// # Errors
/// Everything that is wrong with it, in one answer.
pub fn validate(yaml: &str) -> Result<ValidatedJob, Vec<Problem>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Manifest {
        api_version: String,
        kind: String,
        metadata: Metadata,
        spec: RLTrainingJobSpec,
    }
    let problem = |path: &str, message: String| {
        vec![Problem { path: path.into(), value: None, message, allowed: None }]
    };
    let manifest: Manifest = serde_saphyr::from_str(yaml).map_err(|error| problem("", error.to_string()))?;
    if manifest.api_version != API_VERSION || manifest.kind != KIND {
        return Err(problem("apiVersion", format!("expected {API_VERSION} {KIND}")));
    }
    match ResolvedSpec::resolve(&manifest.spec) {
        Some(spec) => Ok(ValidatedJob { metadata: manifest.metadata, spec }),
        None => Err(problem("spec.model", "exactly one of path, hub and architecture must be given".into())),
    }
}
