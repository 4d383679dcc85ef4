//! The desired objects of a job, each a pure function of the job and its plan. Existing objects are not read
//! here.

mod authority;
mod avoidance;
mod claim;
mod container;
mod environment;
mod input;
mod manifest;
mod network;
mod network_policy;
mod placement;
mod pod;
mod pod_group;
mod text_digest;
mod volumes;
mod workload;

use serde_json::Value;

pub use authority::Authority;
pub use avoidance::avoid;
pub use claim::storage_claim;
pub use container::image;
pub use input::{
    BuildInput, ChannelAccess, ObjectError, Settings, claim_name, config_map_name, workers_name,
};
pub use manifest::{MANIFEST_KEY, config_map, content_digest};
pub use network::{endpoint, endpoint_digest, service, service_account};
pub use network_policy::network_policy;
pub use placement::{Flavor, Flavors, Placement, PlacementConflict, gang_of};
pub use pod::{allow_restarts, pod, with_image};
pub use pod_group::{Gang, gang, pod_group, pod_group_kind, pod_group_name};
pub(crate) use text_digest::digest;
use text_digest::within_label;
pub use workload::{PriorityClass, queue_priority_class, workload, workload_digest, workload_labels};

pub use crate::pod_settings::PodSettings;
use crate::queue;

/// Returns all objects of an attempt as JSON, pods last, without the fields that queues and gang schedulers
/// add to pods. The PodGroup that a cluster with a gang scheduler gets is not among them.
///
/// # Errors
/// [`ObjectError`], which would be a bug.
pub fn objects(input: &BuildInput<'_>, attempt: u32) -> Result<Vec<Value>, ObjectError> {
    let mut objects =
        vec![serde_json::to_value(service_account(input))?, serde_json::to_value(config_map(input)?)?];
    let groups = &input.prepared.plan.worker_groups;
    for group in groups {
        objects.extend(service(input, group).map(serde_json::to_value).transpose()?);
        objects.extend(endpoint(input, group, None).map(serde_json::to_value).transpose()?);
    }
    objects.extend(storage_claim(input).map(serde_json::to_value).transpose()?);
    objects.extend(network_policy(input).map(serde_json::to_value).transpose()?);
    let asked_for = queue::asked_for(input.job).map(|queue| workload(input, queue, None, &[]));
    objects.extend(asked_for.map(serde_json::to_value).transpose()?);
    for group in groups {
        for worker_idx in 0..group.num_workers {
            objects.push(serde_json::to_value(pod(input, attempt, group, worker_idx))?);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests;
