//! Address of the leader in the EndpointSlice of the channel's Service, which has no selector: exactly one
//! replica serves, and a change of leader is one write.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};

use rlt_objects::labels::OPERATOR;

/// The leader's address could not be announced.
#[derive(Debug, thiserror::Error)]
#[error("failed to write EndpointSlice {namespace}/{name}")]
pub struct EndpointError {
    namespace: String,
    name: String,
    source: kube::Error,
}

/// Makes the port of an address the only endpoint of the Service `service`.
///
/// # Errors
/// [`EndpointError`].
pub async fn announce(
    client: &Client,
    namespace: &str,
    service: &str,
    ip: IpAddr,
    port: u16,
) -> Result<(), EndpointError> {
    let mut slice = endpoint_slice(service, ip, port);
    slice.metadata.owner_references = owner(client, namespace, service).await.map(|owner| vec![owner]);
    let name = slice.metadata.name.clone().unwrap_or_default();
    let api = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
    let params = PatchParams::apply(OPERATOR).force();
    let applied = api.patch(&name, &params, &Patch::Apply(&slice)).await;
    applied.map(drop).map_err(|source| EndpointError { namespace: namespace.into(), name, source })
}

/// Returns the owner reference to the Service, because no controller deletes the slice of a deleted Service.
/// Failures to read the Service are logged, and do not prevent the announcement.
async fn owner(client: &Client, namespace: &str, service: &str) -> Option<OwnerReference> {
    let found = Api::<Service>::namespaced(client.clone(), namespace).get_metadata(service).await;
    let uid =
        found.inspect_err(|error| tracing::warn!(service, %error, "the channel's Service cannot be read"));
    Some(OwnerReference {
        api_version: "v1".into(),
        kind: "Service".into(),
        name: service.into(),
        uid: uid.ok()?.metadata.uid?,
        ..OwnerReference::default()
    })
}

fn endpoint_slice(service: &str, ip: IpAddr, port: u16) -> EndpointSlice {
    let address_type = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels =
        [("kubernetes.io/service-name", service), ("endpointslice.kubernetes.io/managed-by", OPERATOR)];
    EndpointSlice {
        address_type: address_type.into(),
        endpoints: vec![Endpoint {
            addresses: vec![ip.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            ..Endpoint::default()
        }],
        metadata: ObjectMeta {
            name: Some(format!("{service}-{}", address_type.to_lowercase())),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        ports: Some(vec![EndpointPort {
            name: Some("channel".into()),
            port: Some(port.into()),
            protocol: Some("TCP".into()),
            ..EndpointPort::default()
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_belongs_to_the_service_and_holds_one_address() {
        let slice = endpoint_slice("rl-operator-channel", [10, 0, 0, 7].into(), 9443);
        assert_eq!(slice.metadata.name.as_deref(), Some("rl-operator-channel-ipv4"));
        assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], "rl-operator-channel");
        assert_eq!(slice.endpoints[0].addresses, ["10.0.0.7"]);
    }
}
