//! The arguments that give the process its identity and its listening addresses.

use std::net::{IpAddr, SocketAddr};

/// Identity of the process, its addresses and its rate limit.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Namespace of the operator.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Name of the operator's pod, which identifies the holder of the lease.
    #[arg(long, env = "POD_NAME", value_name = "NAME", hide = true)]
    pub pod_name: Option<String>,
    /// UID of the operator's pod, so that a restarted container keeps the lease of its predecessor.
    #[arg(long, env = "POD_UID", value_name = "UID", hide = true)]
    pub pod_uid: Option<String>,
    /// Address of the operator's pod, to which the channel's Service leads.
    #[arg(long, env = "POD_IP", value_name = "IP", hide = true)]
    pub pod_ip: Option<IpAddr>,
    /// Lease of the leader election; without one there is no election, for a single replica.
    #[arg(long, value_name = "NAME")]
    pub lease: Option<String>,
    /// Listening address of probes and metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Listening address of the status channel.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub channel_listen: SocketAddr,
    /// Service, without a selector, through which ranks reach the leader.
    #[arg(long, value_name = "NAME")]
    pub channel_service: Option<String>,
    /// Host by which ranks reach this process where no Service leads to it.
    #[arg(long, value_name = "HOST", conflicts_with = "channel_service")]
    pub channel_host: Option<String>,
    /// Sustained rate of calls to the API server, per second: 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub calls_per_second: u32,
    /// Maximum number of calls to the API server at once after a pause: 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub call_burst: u32,
}
