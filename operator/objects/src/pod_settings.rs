//! The settings of a cluster for the pods of all jobs.

use rlt_api::Defaults;

use crate::privileges::Privileges;

/// The cluster's settings for the pods of all jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSettings {
    /// Privileges beyond Pod Security's level `restricted`.
    pub privileges: Privileges,
    /// The cluster's defaults, which a namespace's defaults override.
    pub defaults: Defaults,
}
