//! Optional APIs of a cluster: Kueue and gang schedulers. The operator decides when to discover them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::core::{ApiResource, GroupVersionKind};

/// Optional APIs that the cluster serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Whether the cluster serves Kueue's Workload v1beta2.
    pub has_workloads: bool,
    /// Served version of Kubernetes' own PodGroup; `None` without one.
    pub native_groups: Option<&'static str>,
    /// Whether the cluster serves Volcano's PodGroup.
    pub has_volcano: bool,
    /// Whether the cluster serves the PodGroup of scheduler-plugins.
    pub has_coscheduling: bool,
}

/// Kueue's API group, and the version of its Workload.
const KUEUE: (&str, &str) = ("kueue.x-k8s.io", "v1beta2");
/// Versions of Kubernetes' PodGroup that are supported, in order of preference. Earlier versions have no
/// PodGroup, or a different one.
const NATIVE_VERSIONS: [&str; 3] = ["v1beta1", "v1alpha3", "v1alpha2"];

/// API resource of Kueue's Workload.
pub fn workloads() -> ApiResource {
    kueue("Workload")
}

/// API resource of a kind of Kueue.
pub fn kueue(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(KUEUE.0, KUEUE.1, kind))
}

impl Served {
    /// Reads the response of `/apis`.
    pub fn read(groups: &APIGroupList) -> Self {
        let serves = |group: &str, version: &str| {
            let group = groups.groups.iter().find(|known| known.name == group);
            group.is_some_and(|group| group.versions.iter().any(|known| known.version == version))
        };
        Self {
            has_workloads: serves(KUEUE.0, KUEUE.1),
            native_groups: NATIVE_VERSIONS.into_iter().find(|version| serves("scheduling.k8s.io", version)),
            has_volcano: serves("scheduling.volcano.sh", "v1beta1"),
            has_coscheduling: serves("scheduling.x-k8s.io", "v1alpha1"),
        }
    }
}
