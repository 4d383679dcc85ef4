//! The kubelet: its configuration and flags.

use std::path::Path;

use serde_json::json;

use super::{NodeError, Site, make_folder};
use crate::process::Process;

/// Starts the kubelet on containerd's `socket`.
pub(super) fn start(site: &Site, socket: &Path, kubeconfig: &Path) -> Result<Process, NodeError> {
    make_folder(&site.folder.join("kubelet"))?;
    let configuration = site.write("kubelet.json", &configuration(site, socket).to_string())?;
    let flags = [
        format!("--config={}", configuration.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", site.path("kubelet")),
        format!("--hostname-override={}", site.slot.name()),
        format!("--node-ip={}", site.slot.node_address()),
        format!("--cert-dir={}", site.path("kubelet/pki")),
    ];
    Ok(site.place.start(&site.programs.join("kubelet"), &flags)?)
}

fn configuration(site: &Site, socket: &Path) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "podLogsDir": site.path("pod-logs"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", site.slot.name()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        // The disk belongs to the machine of the tests, which may say a size that it does not have.
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "50Mi", "imagefs.available": "50Mi"
        },
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": [site.slot.node_address()],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "healthzPort": 0,
        // Only this machine reaches it.
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "nodeStatusUpdateFrequency": "2s",
        "registerNode": true
    })
}
