//! Addresses and names of services: kube-proxy and CoreDNS.

use std::path::Path;

use serde_json::json;

use super::{NodeError, Site};
use crate::process::Process;

/// Starts what turns a service's address into that of a pod.
pub(super) fn start_proxy(site: &Site, kubeconfig: &Path) -> Result<Process, NodeError> {
    let configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": kubeconfig },
        "conntrack": { "maxPerCore": 0, "min": 0 },
        "hostnameOverride": site.slot.name(),
        "clusterCIDR": site.slot.pod_subnet(),
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249"
    });
    let path = site.write("proxy.json", &configuration.to_string())?;
    let flags = [format!("--config={}", path.display())];
    Ok(site.place.start(&site.programs.join("kube-proxy"), &flags)?)
}

/// Starts what knows the names of services and of pods behind headless ones.
pub(super) fn start_dns(site: &Site, program: &Path, kubeconfig: &Path) -> Result<Process, NodeError> {
    let (address, kubeconfig) = (site.slot.node_address(), kubeconfig.display());
    // Answers live a second: a gang that restarts has new addresses.
    let configuration = format!(
        ".:53 {{\n    bind {address}\n    errors\n    kubernetes cluster.local in-addr.arpa {{\n        \
         kubeconfig {kubeconfig}\n        pods insecure\n        ttl 1\n    }}\n    cache 1\n}}\n"
    );
    let path = site.write("Corefile", &configuration)?;
    let flags = [format!("-conf={}", path.display())];
    Ok(site.place.start(&program.join("coredns"), &flags)?)
}
