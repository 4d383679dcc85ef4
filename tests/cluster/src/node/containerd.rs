//! containerd: its configuration, the network plugins it calls for each pod, and the image of sandboxes.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{NodeError, PATIENCE, PROBE_IMAGE, Site, make_folder};
use crate::oci;
use crate::process::Process;

/// Starts containerd with folders of its own.
pub(super) fn start(site: &Site) -> Result<Process, NodeError> {
    make_folder(&site.folder.join("cni"))?;
    site.write("cni/10-rlt.conflist", &network(site).to_string())?;
    let path = site.write("containerd.toml", &configuration(site))?;
    let flags = [format!("--config={}", path.display())];
    Ok(site.place.start(Path::new("containerd"), &flags)?)
}

/// Waits until containerd answers, and returns its socket.
pub(super) fn wait(site: &Site, containerd: &mut Process) -> Result<PathBuf, NodeError> {
    let socket = site.folder.join("containerd.sock");
    let started = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        containerd.check()?;
        if started.elapsed() > PATIENCE {
            let log = crate::process::tail(&site.place.logs.join("containerd.log"));
            return Err(NodeError::NotReady { what: "containerd", log });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(socket)
}

/// Writes the archive of the image that holds each pod's namespaces.
pub(super) fn probe_image(site: &Site, program: &Path) -> Result<PathBuf, NodeError> {
    let (folder, archive) = (site.folder.join("probe"), site.folder.join("probe.tar"));
    match oci::write_archive(&program.join("probe"), PROBE_IMAGE, &folder, &archive) {
        Ok(()) => Ok(archive),
        Err(source) => Err(NodeError::File { act: "writing", path: archive, source }),
    }
}

/// Point-to-point links and not a bridge: so every packet is routed, and a service's address works between
/// two pods of one node.
fn network(site: &Site) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": site.slot.name(),
        "plugins": [{
            "type": "ptp",
            "mtu": 1400,
            "ipam": {
                "type": "host-local",
                "dataDir": site.path("addresses"),
                "ranges": [[{ "subnet": site.slot.pod_subnet() }]],
                "routes": [{ "dst": "0.0.0.0/0" }]
            }
        }, { "type": "portmap", "capabilities": { "portMappings": true } }]
    })
}

fn configuration(site: &Site) -> String {
    let (root, state, socket) = (site.path("containerd"), site.path("state"), site.path("containerd.sock"));
    let (network, criu) = (site.path("cni"), site.path("opt"));
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{criu}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PROBE_IMAGE}"
  stream_server_port = "0"
  # Without the right to lower a score every sandbox would die.
  restrict_oom_score_adj = true
  # Otherwise pods' namespaces would outlive the sweep.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{network}"
"#
    )
}
