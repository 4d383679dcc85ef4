//! Where the workers of a job meet, and as whom they run.

use k8s_openapi::api::core::v1::{Service, ServiceAccount, ServicePort, ServiceSpec};

use super::{Blueprint, workers_name};
use crate::labels;

/// The headless Service that gives the first worker a name. The others need none: all meet at the first one, and each
/// address less is two writes less. `None` where there is only one worker.
pub fn service(blueprint: &Blueprint<'_>) -> Option<Service> {
    let group = blueprint.prepared.plan.worker_groups.first().filter(|group| group.num_workers > 1)?;
    let mut selector = labels::of_job(blueprint.job);
    selector.retain(|name, _| name == labels::JOB_UID);
    selector.insert(labels::WORKER_GROUP.into(), group.name.clone());
    selector.insert(labels::WORKER_IDX.into(), "0".into());
    let port = rlt_api::plan::RENDEZVOUS_PORT;
    let port = ServicePort { name: Some("rendezvous".into()), port: port.into(), ..ServicePort::default() };
    Some(Service {
        metadata: blueprint.metadata(workers_name(blueprint.name())),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            // The others look for the first worker before it is ready.
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    })
}

/// The identity of the workers: it may do nothing, and no token of it is mounted unasked.
pub fn service_account(blueprint: &Blueprint<'_>) -> ServiceAccount {
    ServiceAccount {
        metadata: blueprint.metadata(workers_name(blueprint.name())),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
