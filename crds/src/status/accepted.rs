//! Digests of the specification that a job runs under.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The specification that the job runs under, as its ConfigMap `NAME-manifest` holds it. Another operator
/// continues the job under it, even where it would not accept the job as a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceptedStatus {
    /// The generation of the job that has this specification, apart from `spec.runPolicy`.
    pub generation: i64,
    /// Digest of the manifest in the ConfigMap; one with another digest is not used.
    #[schemars(length(max = 64))]
    pub manifest_digest: String,
    /// Digest of the job's own specification without `spec.runPolicy` and without defaults.
    #[schemars(length(max = 64))]
    pub spec_digest: String,
    /// Digest of the specification with every default and without `spec.workers` and `spec.runPolicy`: what
    /// the training computes.
    #[schemars(length(max = 64))]
    pub training_digest: String,
}

impl AcceptedStatus {
    /// Whether a job has this specification, apart from `spec.runPolicy`. A job of the same generation has
    /// it, even where a release has added fields that the API server fills in.
    pub fn is_of(&self, generation: i64, spec_digest: &str) -> bool {
        self.generation == generation || self.spec_digest == spec_digest
    }
}
