//! Address of the leader in the EndpointSlice of the channel's Service, which has no selector: exactly one
//! replica serves, and a change of leader is one write. The address is written again each minute, in case the
//! EndpointSlice was deleted or changed.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};

use rlt_objects::labels::OPERATOR;

/// Interval between two announcements.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
/// Wait after a failed announcement.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The leader's address could not be announced.
#[derive(Debug, thiserror::Error)]
#[error("failed to write EndpointSlice {namespace}/{name}")]
pub struct EndpointError {
    namespace: String,
    name: String,
    source: kube::Error,
}

/// Keeps `ip` and `port` the only endpoint of the Service `service`. Never returns: when the Service is
/// installed again, its EndpointSlice is deleted with the old one, and a call may fail.
pub async fn keep_announced(client: &Client, namespace: &str, service: &str, ip: IpAddr, port: u16) {
    loop {
        let wait = match announce(client, namespace, service, ip, port).await {
            Ok(()) => ANNOUNCE_EVERY,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the status channel is not announced"
                );
                RETRY_AFTER
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Makes `ip` and `port` the only endpoint of the Service `service`.
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

/// Returns an owner reference to the Service, by which the EndpointSlice is deleted with it. No controller
/// would do that. Failures to read the Service are logged, and do not prevent the announcement.
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_announced_again_after_a_failure_and_each_minute() {
        let num_patches = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&num_patches);
        let server = tower::service_fn(move |request: Request<Body>| {
            let is_patch = request.method() == Method::PATCH;
            let is_taken = is_patch && counter.fetch_add(1, Ordering::SeqCst) > 0;
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {},
                "addressType": "IPv4", "endpoints": [],
            });
            let (code, body) =
                if is_taken { (200, slice.to_string().into_bytes()) } else { (500, Vec::new()) };
            let response = Response::builder().status(code).body(Body::from(body)).unwrap();
            futures::future::ready(Ok::<_, tower::BoxError>(response))
        });
        let client = Client::new(server, "rl");
        let announced = keep_announced(&client, "rl", "channel", [10, 0, 0, 7].into(), 9443);
        let three_and_a_half = RETRY_AFTER + ANNOUNCE_EVERY * 7 / 2;
        assert!(tokio::time::timeout(three_and_a_half, announced).await.is_err(), "it never ends");
        // The first one fails, the second one follows after the retry delay, and three more each minute.
        assert_eq!(num_patches.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn a_slice_belongs_to_the_service_and_holds_one_address() {
        let slice = endpoint_slice("rl-operator-channel", [10, 0, 0, 7].into(), 9443);
        assert_eq!(slice.metadata.name.as_deref(), Some("rl-operator-channel-ipv4"));
        assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], "rl-operator-channel");
        assert_eq!(slice.endpoints[0].addresses, ["10.0.0.7"]);
    }
}
