//! Nodes that exist in the API alone: the real scheduler binds pods to them, and kwok writes the status a
//! kubelet would.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use crate::cluster::ClusterError;
use crate::process::Process;

const STAGES: &str = include_str!("stages.yaml");
/// Marks the nodes that kwok plays.
const MARK: &str = "fake.rltraining.dev/node";

/// Nodes that exist in the API alone, all alike.
///
/// A pod on them is `Running` after [`FakeNodes::start_after`] and gone [`FakeNodes::stop_after`] its
/// deletion; it ends only where its annotations say so, which may be set while it runs. Durations are such as
/// `250ms`.
///
/// | annotation of the pod | meaning |
/// |---|---|
/// | `fake.rltraining.dev/start-after`, `stop-after` | instead of the nodes' own durations |
/// | `fake.rltraining.dev/exit-code` | all containers end with this code |
/// | `fake.rltraining.dev/exit-after` | how long after the start or, where later, the annotation; at once if absent |
/// | `fake.rltraining.dev/exit-reason` | such as `OOMKilled`, instead of `Error` |
#[derive(Clone, Debug)]
pub struct FakeNodes {
    /// How many; they are named `fake-0`, `fake-1` and so on.
    pub num_nodes: usize,
    /// Capacity of each node, in Kubernetes' quantities: `cpu`, `memory`, `pods`, `nvidia.com/gpu`.
    pub capacity: BTreeMap<String, String>,
    /// Time from a pod's binding to its start.
    pub start_after: Duration,
    /// Time from a pod's deletion to its end.
    pub stop_after: Duration,
}

impl FakeNodes {
    /// Nodes of 32 cores, 256 GiB and 8 GPUs whose pods start and stop at once.
    pub fn new(num_nodes: usize) -> Self {
        let capacity = [("cpu", "32"), ("memory", "256Gi"), ("pods", "110"), ("nvidia.com/gpu", "8")];
        Self {
            num_nodes,
            capacity: capacity.map(|(name, quantity)| (name.to_owned(), quantity.to_owned())).into(),
            start_after: Duration::ZERO,
            stop_after: Duration::ZERO,
        }
    }

    /// The stages as kwok reads them.
    pub(crate) fn stages(&self) -> String {
        STAGES
            .replace("START_AFTER", &self.start_after.as_millis().to_string())
            .replace("STOP_AFTER", &self.stop_after.as_millis().to_string())
    }

    /// Makes the nodes and waits until pods can be bound to them.
    pub(crate) async fn make(&self, client: &kube::Client, kwok: &mut Process) -> Result<(), ClusterError> {
        let nodes: Api<Node> = Api::all(client.clone());
        for index in 0..self.num_nodes {
            let node = self.node(index).ok_or(ClusterError::Answer { field: "node" })?;
            nodes.create(&PostParams::default(), &node).await?;
        }
        let fakes = ListParams::default().labels(MARK);
        while nodes.list(&fakes).await?.iter().filter(|node| is_open(node)).count() < self.num_nodes {
            kwok.check().map_err(crate::control_plane::ControlPlaneError::from)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn node(&self, index: usize) -> Option<Node> {
        let name = format!("fake-{index}");
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": { MARK: "", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux" },
                "annotations": { MARK: "true" }
            },
            "status": { "capacity": self.capacity, "allocatable": self.capacity }
        }))
        .ok()
    }
}

/// Command line of kwok, without the program.
pub(crate) fn flags(kubeconfig: &Path, stages: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--config={}", stages.display()),
        "--manage-all-nodes=false".into(),
        format!("--manage-nodes-with-annotation-selector={MARK}=true"),
        "--node-lease-duration-seconds=40".into(),
        "--cidr=10.0.0.0/8".into(),
    ]
}

/// Ready, and no longer tainted as a node that is not.
pub(crate) fn is_open(node: &Node) -> bool {
    let is_tainted =
        node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_some_and(|taints| !taints.is_empty());
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready =
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
    is_ready && !is_tainted
}
