//! The arguments that give the process its identity and its listening addresses.

use std::net::{IpAddr, SocketAddr};

/// The identity of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// The operator's own namespace.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Name of its pod, by which the holder of the lease is known.
    #[arg(long, env = "POD_NAME", value_name = "NAME", hide = true)]
    pub pod_name: Option<String>,
    /// UID of its pod: a container that was restarted holds the lease of its predecessor.
    #[arg(long, env = "POD_UID", value_name = "UID", hide = true)]
    pub pod_uid: Option<String>,
    /// Address of its pod, to which the channel's Service leads.
    #[arg(long, env = "POD_IP", value_name = "IP", hide = true)]
    pub pod_ip: Option<IpAddr>,
    /// The Lease of leader election; without one there is no election, for a single replica.
    #[arg(long, value_name = "NAME")]
    pub lease: Option<String>,
    /// The address of probes and metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The address of the status channel.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub channel_listen: SocketAddr,
    /// The Service, without a selector, through which ranks reach the leader.
    #[arg(long, value_name = "NAME")]
    pub channel_service: Option<String>,
    /// The host by which ranks reach this process where no Service leads to it.
    #[arg(long, value_name = "HOST", conflicts_with = "channel_service")]
    pub channel_host: Option<String>,
    /// Sustained calls to the API server per second.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub calls_per_second: u32,
    /// Burst of calls to the API server.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub call_burst: u32,
}
