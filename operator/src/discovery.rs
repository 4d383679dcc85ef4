//! Which of the APIs that a cluster may have, it has: queues and gang schedulers. Known from one call; asked
//! again only when a job would need one that was not there. What is not there is neither watched nor called.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// Least time between two questions.
const PATIENCE: Duration = Duration::from_secs(30);

/// The APIs that are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Kueue's Workload, in the version that is spoken here.
    pub has_workloads: bool,
    /// The version of Kubernetes' own PodGroup.
    pub native_groups: Option<&'static str>,
    /// Volcano's PodGroup.
    pub has_volcano: bool,
    /// The PodGroup of scheduler-plugins.
    pub has_coscheduling: bool,
}

/// Kueue's group and the version of its Workload.
const KUEUE: (&str, &str) = ("kueue.x-k8s.io", "v1beta2");
/// The versions of Kubernetes' PodGroup, the best first. Those before have none, or another one.
const NATIVE_VERSIONS: [&str; 3] = ["v1beta1", "v1alpha3", "v1alpha2"];

/// Kueue's Workload.
pub fn workloads() -> ApiResource {
    kueue("Workload")
}

/// A kind of Kueue.
pub fn kueue(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(KUEUE.0, KUEUE.1, kind))
}

impl Served {
    /// Reads the answer of `/apis`.
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

/// What is known of the cluster.
#[derive(Debug)]
pub struct Discovery {
    served: watch::Sender<Served>,
    asked_at: Mutex<Option<Instant>>,
    patience: Duration,
}

impl Default for Discovery {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Discovery {
    /// Nothing is known, and asked for no more often than this.
    pub fn new(patience: Duration) -> Self {
        Self { served: watch::Sender::new(Served::default()), asked_at: Mutex::new(None), patience }
    }

    /// What is served as far as is known.
    pub fn served(&self) -> Served {
        *self.served.borrow()
    }

    /// Follows what is served.
    pub fn changes(&self) -> watch::Receiver<Served> {
        self.served.subscribe()
    }

    /// Asks the API server, unless that was done a moment ago. A question without an answer leaves everything
    /// as it is.
    pub async fn refresh(&self, client: &Client) {
        let mut asked_at = self.asked_at.lock().await;
        if asked_at.is_some_and(|at| at.elapsed() < self.patience) {
            return;
        }
        match Box::pin(client.list_api_groups()).await {
            Ok(groups) => {
                *asked_at = Some(Instant::now());
                let served = Served::read(&groups);
                self.served.send_if_modified(|known| {
                    let is_new = *known != served;
                    *known = served;
                    is_new
                });
            }
            Err(error) => tracing::warn!(%error, "the API server did not say what it serves"),
        }
    }

    /// Waits until Kueue is there.
    pub async fn kueue(self: &Arc<Self>) {
        let mut changes = self.changes();
        // The sender lives as long as this.
        let _ = changes.wait_for(|served| served.has_workloads).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn served(groups: &[(&str, &[&str])]) -> Served {
        let group = |(name, versions): &(&str, &[&str])| {
            let versions = versions
                .iter()
                .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}));
            json!({"name": name, "versions": versions.collect::<Vec<_>>()})
        };
        let groups: Vec<_> = groups.iter().map(group).collect();
        Served::read(&serde_json::from_value(json!({"groups": groups})).unwrap())
    }

    #[test]
    fn what_is_served_is_known_by_group_and_version() {
        assert_eq!(served(&[("scheduling.k8s.io", &["v1"]), ("apps", &["v1"])]), Served::default());
        let all = served(&[
            ("kueue.x-k8s.io", &["v1beta1", "v1beta2"]),
            ("scheduling.k8s.io", &["v1", "v1alpha2"]),
            ("scheduling.volcano.sh", &["v1beta1"]),
            ("scheduling.x-k8s.io", &["v1alpha1"]),
        ]);
        assert!(all.has_workloads && all.has_volcano && all.has_coscheduling);
        assert_eq!(all.native_groups, Some("v1alpha2"));
    }

    #[test]
    fn of_several_versions_the_best_is_spoken_and_none_that_is_older_than_its_pod_groups() {
        let native = |versions| served(&[("scheduling.k8s.io", versions)]).native_groups;
        assert_eq!(native(&["v1", "v1alpha3", "v1beta1"]), Some("v1beta1"));
        assert_eq!(native(&["v1", "v1alpha1"]), None);
        assert!(!served(&[("kueue.x-k8s.io", &["v1beta1"])]).has_workloads);
    }
}
