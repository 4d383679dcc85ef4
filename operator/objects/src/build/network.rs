//! Network name and service account of a job's workers.

use k8s_openapi::api::core::v1::{ObjectReference, Service, ServiceAccount, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use rlt_plan::{RENDEZVOUS_PORT, WorkerGroup};

use super::{BuildInput, digest, workers_name};
use crate::labels;
use crate::worker::Worker;

/// Name of the Service's only port.
const PORT_NAME: &str = "rendezvous";

/// Returns the headless Service that gives a group's first worker its DNS name; `None` for a single worker
/// and for spares. It has no selector, because the operator writes the only address itself. With a selector,
/// the endpoint controller would scan every pod of the namespace and write the address a second time.
pub fn service(input: &BuildInput<'_>, group: &WorkerGroup) -> Option<Service> {
    gang(group)?;
    let port =
        ServicePort { name: Some(PORT_NAME.into()), port: RENDEZVOUS_PORT.into(), ..ServicePort::default() };
    Some(Service {
        metadata: input.metadata_of(group, group.service_name()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    })
}

/// Returns the EndpointSlice with the address of the first worker. Without a first worker it is empty, so
/// that the DNS name never resolves to a worker that is gone. `None` for a single worker and for spares.
pub fn endpoint(
    input: &BuildInput<'_>,
    group: &WorkerGroup,
    first: Option<&Worker>,
) -> Option<EndpointSlice> {
    gang(group)?;
    let name = group.service_name();
    let mut metadata = input.metadata_of(group, name.clone());
    metadata.labels.get_or_insert_default().extend([
        ("kubernetes.io/service-name".to_owned(), name),
        ("endpointslice.kubernetes.io/managed-by".to_owned(), labels::OPERATOR.to_owned()),
    ]);
    metadata.annotations = Some([(labels::CONTENT_DIGEST.to_owned(), endpoint_digest(first))].into());
    let first = first.and_then(|worker| Some((worker, worker.address.as_deref()?)));
    let is_v6 = first.is_some_and(|(_, address)| address.contains(':'));
    Some(EndpointSlice {
        metadata,
        address_type: if is_v6 { "IPv6" } else { "IPv4" }.into(),
        endpoints: first
            .map(|(worker, address)| reached(input, group, worker, address))
            .into_iter()
            .collect(),
        ports: Some(vec![EndpointPort {
            name: Some(PORT_NAME.into()),
            port: Some(RENDEZVOUS_PORT.into()),
            protocol: Some("TCP".into()),
            ..EndpointPort::default()
        }]),
    })
}

/// Returns the digest of an EndpointSlice, which is the same for all groups without a first worker.
pub fn endpoint_digest(first: Option<&Worker>) -> String {
    digest(first.into_iter().flat_map(|worker| [&*worker.uid, worker.address.as_deref().unwrap_or("")]))
}

fn gang(group: &WorkerGroup) -> Option<&WorkerGroup> {
    Some(group).filter(|group| group.num_workers > 1 && !group.is_spare())
}

fn reached(input: &BuildInput<'_>, group: &WorkerGroup, worker: &Worker, address: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.to_owned()],
        // Ready from the start: the other workers resolve the name before the first one is ready.
        conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
        hostname: Some(group.worker_name(0)),
        node_name: worker.node.as_deref().map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(input.job.namespace().into()),
            name: Some(worker.name.to_string()),
            uid: Some(worker.uid.to_string()),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// Returns the service account of the workers. It has no rights, and its token is not mounted by default.
pub fn service_account(input: &BuildInput<'_>) -> ServiceAccount {
    let mut metadata = input.metadata(workers_name(input.name()));
    let annotations = &input.prepared.job.spec().workers.pod.service_account_annotations;
    if !annotations.is_empty() {
        let digest = digest(annotations.iter().flat_map(|(name, value)| [name.as_str(), value]));
        let mut annotations = annotations.clone();
        annotations.insert(labels::CONTENT_DIGEST.into(), digest);
        metadata.annotations = Some(annotations);
    }
    ServiceAccount { metadata, automount_service_account_token: Some(false), ..ServiceAccount::default() }
}
