//! NetworkPolicy of the workers.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rlt_api::spec::NetworkAccess;

use super::{BuildInput, digest, workers_name};
use crate::labels;

/// Port of DNS servers.
const NAME_PORT: u16 = 53;

/// Returns the NetworkPolicy of a job, with a digest of its content; `None` if the job requests none.
pub fn network_policy(input: &BuildInput<'_>) -> Option<NetworkPolicy> {
    let access = input.prepared.job.spec().workers.network;
    let egress = match access {
        NetworkAccess::Open => return None,
        NetworkAccess::Guarded => None,
        NetworkAccess::Isolated => Some(egress(input)),
    };
    let types = if egress.is_some() { ["Ingress", "Egress"].as_slice() } else { ["Ingress"].as_slice() };
    let spec = NetworkPolicySpec {
        pod_selector: Some(workers(input)),
        policy_types: Some(types.iter().copied().map(str::to_owned).collect()),
        ingress: Some(ingress(input)),
        egress,
    };
    let text = serde_json::to_string(&spec).unwrap_or_default();
    let mut metadata = input.metadata(workers_name(input.name()));
    metadata.annotations = Some([(labels::CONTENT_DIGEST.to_owned(), digest([text.as_str()]))].into());
    Some(NetworkPolicy { metadata, spec: Some(spec) })
}

/// Selects all workers of a job, in all attempts.
fn workers(input: &BuildInput<'_>) -> LabelSelector {
    let uid = (labels::JOB_UID.to_owned(), input.job.uid().to_owned());
    LabelSelector { match_labels: Some([uid].into()), match_expressions: None }
}

fn each_other(input: &BuildInput<'_>) -> Vec<NetworkPolicyPeer> {
    vec![NetworkPolicyPeer { pod_selector: Some(workers(input)), ..NetworkPolicyPeer::default() }]
}

fn port(number: u16, protocol: &str) -> NetworkPolicyPort {
    NetworkPolicyPort {
        // The field is a number or a name, and its type is only constructible from JSON.
        port: serde_json::from_value(number.into()).ok(),
        protocol: Some(protocol.into()),
        end_port: None,
    }
}

fn ingress(input: &BuildInput<'_>) -> Vec<NetworkPolicyIngressRule> {
    let ranks = NetworkPolicyIngressRule { from: Some(each_other(input)), ports: None };
    let metrics = input.prepared.job.spec().tracking.prometheus.as_ref().map(|endpoint| endpoint.port);
    // Port 0 stands for a random port at each start, which no rule can name.
    let metrics = metrics
        .filter(|port| *port != 0)
        .map(|number| NetworkPolicyIngressRule { from: None, ports: Some(vec![port(number, "TCP")]) });
    std::iter::once(ranks).chain(metrics).collect()
}

fn egress(input: &BuildInput<'_>) -> Vec<NetworkPolicyEgressRule> {
    let ranks = NetworkPolicyEgressRule { to: Some(each_other(input)), ports: None };
    let channel = input.settings.channel.as_ref().and_then(|channel| {
        let (_, number) = channel.address.rsplit_once(':')?;
        number.parse().ok()
    });
    let mut ports = vec![port(NAME_PORT, "UDP"), port(NAME_PORT, "TCP")];
    ports.extend(channel.map(|number| port(number, "TCP")));
    // DNS servers and the operator may have any address in the cluster.
    vec![ranks, NetworkPolicyEgressRule { to: None, ports: Some(ports) }]
}
