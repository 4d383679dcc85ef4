//! The source of each value of `spec.workers` on a cluster: the job, the defaults of its namespace, those
//! of the cluster, or the built-in ones.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use rlt_api::{Defaults, Origin};
use rlt_objects::build::PodSettings;
use rlt_objects::job::Job;
use rlt_objects::pod_defaults::{NAME, NamespaceDefaults};
use serde::Serialize;
use serde_json::Value;

use crate::cluster::Connection;

/// One value and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FieldOrigin {
    field: String,
    value: Value,
    from: Origin,
}

/// Reads the defaults of the namespace; `None` if it has none, or the user may not read them.
pub(super) async fn of_namespace(connection: &Connection) -> io::Result<Option<NamespaceDefaults>> {
    let maps = Api::<ConfigMap>::namespaced(connection.client.clone(), &connection.namespace);
    match maps.get_opt(NAME).await {
        Ok(map) => Ok(map.as_ref().map(NamespaceDefaults::read)),
        Err(error) => {
            writeln!(
                rlt_terminal::messages(),
                "note: the defaults of the namespace, ConfigMap {NAME}, cannot be read: {error}"
            )?;
            Ok(None)
        }
    }
}

/// Returns every value of `spec.workers` of a job with its source.
pub(super) fn of(job: &Job, pods: &PodSettings, namespace: Option<&NamespaceDefaults>) -> Vec<FieldOrigin> {
    let of_namespace: Option<&Defaults> = namespace.and_then(|namespace| namespace.defaults.as_ref().ok());
    let origins: BTreeMap<_, _> = job.merged_spec(of_namespace, Some(&pods.defaults)).origins;
    origins.into_iter().map(|(field, (value, from))| FieldOrigin { field, value, from }).collect()
}

/// Formats values and their sources as two columns of text.
pub(super) fn render(origins: &[FieldOrigin]) -> String {
    let said: Vec<_> =
        origins.iter().map(|one| (format!("{}: {}", one.field, one.value), one.from)).collect();
    let width = said.iter().map(|(said, _)| said.chars().count()).filter(|len| *len <= 72).max().unwrap_or(0);
    said.iter().map(|(said, from)| format!("    {said:width$}  {from}\n")).collect()
}
