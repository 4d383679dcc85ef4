//! A manifest as written in a file: type, metadata and specification. Rules that span fields are in `rules`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// API group and version.
pub const API_VERSION: &str = "rltraining.dev/v1alpha1";
/// Kind of the resource.
pub const KIND: &str = "RLTrainingJob";

/// Longest name of a job: pods append their worker group, attempt and rank, and 63 is the limit of a label.
pub(crate) const MAX_NAME_LEN: usize = 52;
/// Error for a longer name, here and in the API server's rule.
pub(crate) const NAME_TOO_LONG: &str = "metadata.name must have at most 52 characters";

/// Error for a name that is no DNS label, here and in the API server's rule.
pub(crate) const NAME_NOT_A_LABEL: &str = "is not a name that Kubernetes accepts";
/// Regular expression of a valid name.
#[cfg(feature = "kube")]
pub(crate) const NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";

/// The part of Kubernetes' object metadata that a local run uses; other fields are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name of the job and of its run folder.
    pub name: String,
    /// Namespace on a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels for users and tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations for users and tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
