//! A network namespace with one link to the host, so that the host is a machine beside the cluster's node.
//!
//! ```text
//!   test process, operator                           etcd, API server, kubelet, pods
//!   198.18.N.2 ==================== veth ==================== 198.18.N.1 --- 198.18.N.128/25 pods
//!                                                                        --- 198.19.N.0/24   services
//! ```
//!
//! Both sides reach each other by these addresses and nothing else: the namespace has no route out of the
//! machine.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::slot::Slot;

/// An error of making a cluster's network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A program could not be run.
    #[error("running {program} failed")]
    Run {
        /// Name of the program.
        program: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A program refused.
    #[error("{program} refused to set up the network of {name}: {answer}")]
    Refused {
        /// Name of the program.
        program: &'static str,
        /// Name of the cluster.
        name: String,
        /// Standard error of the program.
        answer: String,
    },
}

/// Makes namespace, link, addresses and routes.
pub(crate) fn make(slot: &Slot) -> Result<(), NetworkError> {
    let name = slot.name();
    let (host, node) = (slot.host_address(), slot.node_address());
    feed(
        &name,
        "ip",
        &["-batch", "-"],
        &format!(
            "netns add {name}\n\
         link add {name} type veth peer name uplink netns {name}\n\
         address add {host}/25 dev {name}\n\
         link set {name} up\n"
        ),
    )?;
    feed(
        &name,
        "ip",
        &["-netns", &name, "-batch", "-"],
        &format!(
            "link set lo up\n\
         address add {node}/25 dev uplink\n\
         link set uplink up\n\
         route add default dev uplink\n"
        ),
    )?;
    let routes: String = [slot.pod_subnet(), slot.service_subnet()]
        .map(|subnet| format!("route add {subnet} via {node} dev {name}\n"))
        .concat();
    feed(&name, "ip", &["-batch", "-"], &routes)?;
    let netns = netns_option(&name);
    feed(&name, "nsenter", &[&netns, "sh"], "echo 1 >/proc/sys/net/ipv4/ip_forward\n")
}

/// The option by which `nsenter` enters the namespace. `ip netns exec` would hide the control groups.
pub(crate) fn netns_option(name: &str) -> String {
    format!("--net=/run/netns/{name}")
}

fn feed(name: &str, program: &'static str, arguments: &[&str], input: &str) -> Result<(), NetworkError> {
    let failed = |source| NetworkError::Run { program, source };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetworkError::Refused { program, name: name.to_owned(), answer })
}
