//! The ConfigMap that workers read: the manifest with every default written out, so that workers run what was
//! planned, and the variables that they share.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;

use super::{BuildInput, ObjectError, config_map_name, digest, environment};
use crate::labels;

/// Key of the manifest in the ConfigMap, and name of its file in workers.
pub const MANIFEST_KEY: &str = "manifest.yaml";

/// Returns the ConfigMap of a job, with a digest of its data.
///
/// # Errors
/// [`ObjectError`], which would be a bug.
pub fn config_map(input: &BuildInput<'_>) -> Result<ConfigMap, ObjectError> {
    let mut data = BTreeMap::from([(MANIFEST_KEY.to_owned(), input.prepared.job.to_yaml()?)]);
    for group in &input.prepared.plan.worker_groups {
        let variables = serde_json::to_string_pretty(&environment::shared(input, group))?;
        data.insert(environment::key(input, group), variables);
    }
    if let Some(channel) = &input.settings.channel {
        data.insert(rlt_channel::environment::CA_KEY.into(), channel.authority.pem());
    }
    let mut metadata = input.metadata(config_map_name(input.name()));
    let digest = digest(data.iter().flat_map(|(key, text)| [key.as_str(), text]));
    metadata.annotations = Some([(labels::CONTENT_DIGEST.to_owned(), digest)].into());
    Ok(ConfigMap { metadata, data: Some(data), ..ConfigMap::default() })
}

/// Returns the content digest from an object's annotation.
pub fn content_digest<K: Resource>(object: &K) -> Option<&str> {
    object.meta().annotations.as_ref()?.get(labels::CONTENT_DIGEST).map(String::as_str)
}
