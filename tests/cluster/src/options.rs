//! The components of a cluster. A test should choose the cheapest with which it can fail.

use std::collections::BTreeMap;

use crate::fake_nodes::FakeNodes;
use crate::node::TOOLS;
use crate::requirements;

/// Parts of a cluster to start. [`Options::control_plane`] is the cheapest: etcd, API server, controller
/// manager and scheduler.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) has_scheduler: bool,
    pub(crate) has_audit_log: bool,
    pub(crate) feature_gates: Vec<String>,
    pub(crate) served_apis: Vec<String>,
    pub(crate) fake_nodes: Option<FakeNodes>,
    pub(crate) has_real_node: bool,
    pub(crate) has_kueue: bool,
    pub(crate) dispatched_kinds: Vec<String>,
    pub(crate) argo_cd: Option<BTreeMap<String, String>>,
    pub(crate) tools: Vec<String>,
}

impl Options {
    /// etcd, API server, controller manager and scheduler; no node, so pods stay pending.
    pub fn control_plane() -> Self {
        Self {
            has_scheduler: true,
            has_audit_log: false,
            feature_gates: Vec::new(),
            served_apis: Vec::new(),
            fake_nodes: None,
            has_real_node: false,
            has_kueue: false,
            dispatched_kinds: Vec::new(),
            argo_cd: None,
            tools: Vec::new(),
        }
    }

    /// Adds nodes that exist in the API alone: for scale, for timing and for pods that end as a test wants
    /// them to.
    #[must_use]
    pub fn with_fake_nodes(mut self, nodes: FakeNodes) -> Self {
        self.fake_nodes = Some(nodes);
        self
    }

    /// Adds a node whose pods are processes of this machine, with names and addresses of services; five to
    /// eight seconds. Its images are loaded by [`crate::Cluster::load_image`].
    #[must_use]
    pub fn with_real_node(mut self) -> Self {
        self.has_real_node = true;
        self
    }

    /// Names a program of the system that the test itself calls: without it the test skips as without the
    /// cluster.
    #[must_use]
    pub fn with_tool(mut self, tool: &str) -> Self {
        self.tools.push(tool.to_owned());
        self
    }

    /// Leaves the scheduler out: a test that binds pods itself, or never wants them bound.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.has_scheduler = false;
        self
    }

    /// Keeps a log of every call, which [`crate::Cluster::calls`] reads.
    #[must_use]
    pub fn with_audit_log(mut self) -> Self {
        self.has_audit_log = true;
        self
    }

    /// Turns a feature gate on for API server, controller manager and scheduler.
    #[must_use]
    pub fn with_feature_gate(mut self, gate: &str) -> Self {
        self.feature_gates.push(format!("{gate}=true"));
        self
    }

    /// Serves an API that is off by default, such as `scheduling.k8s.io/v1alpha2`.
    #[must_use]
    pub fn with_api(mut self, group_version: &str) -> Self {
        self.served_apis.push(format!("{group_version}=true"));
        self
    }

    /// Serves `PodGroup` and `Workload` of `scheduling.k8s.io/v1alpha2`, and schedules gangs whole or not at
    /// all.
    #[must_use]
    pub fn with_gang_scheduling(self) -> Self {
        self.with_api("scheduling.k8s.io/v1alpha2")
            .with_feature_gate("GenericWorkload")
            .with_feature_gate("GangScheduling")
    }

    /// Adds Kueue, with its webhooks; three seconds, and on the very first time for as long as it takes to
    /// build.
    #[must_use]
    pub fn with_kueue(mut self) -> Self {
        self.has_kueue = true;
        self
    }

    /// Adds a Kueue whose MultiKueue runs objects of this kind (`Kind.version.group`) in other clusters.
    #[must_use]
    pub fn with_multikueue(mut self, kind: &str) -> Self {
        self.dispatched_kinds.push(kind.to_owned());
        self.with_kueue()
    }

    /// Adds Argo CD with these settings in `argocd-cm` besides those of its own manifests, as far as it
    /// syncs: Applications in the namespace `argocd`, from git repositories on this machine's disk. At once,
    /// but on the very first time for as long as it takes to build.
    #[must_use]
    pub fn with_argo_cd(mut self, settings: BTreeMap<String, String>) -> Self {
        self.argo_cd = Some(settings);
        self.with_tool("git")
    }

    /// Reason why such a cluster cannot run on this machine; `None` if it can.
    pub fn unavailable(&self) -> Option<String> {
        let node: &[&str] = if self.has_real_node { &TOOLS } else { &[] };
        let own = self.tools.iter().map(String::as_str);
        requirements::missing(
            &["ip", "nsenter", "unshare"]
                .into_iter()
                .chain(node.iter().copied())
                .chain(own)
                .collect::<Vec<_>>(),
        )
    }
}
