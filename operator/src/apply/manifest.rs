//! Reading the manifest that the workers of a job run, from its ConfigMap.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rlt_objects::build;
use rlt_objects::job::Job;
use rlt_objects::worker;

use super::ApplyError;

/// Reads the manifest in the ConfigMap of a job; `None` if this job has no ConfigMap.
///
/// # Errors
/// When the API server did not answer.
pub async fn read_manifest(client: &Client, job: &Job) -> Result<Option<String>, ApplyError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), job.namespace());
    let name = build::config_map_name(job.name());
    let found = api.get_opt(&name).await;
    let found = found.map_err(|source| ApplyError::Call { act: "read", name, source })?;
    let ours = found.filter(|map| worker::owner(&map.metadata).is_some_and(|owner| owner == job.key()));
    Ok(ours.and_then(|map| map.data?.remove(build::MANIFEST_KEY)))
}
