//! Documents of a file: the jobs of other operators, and the ConfigMaps beside them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::job::{ClusterJob, Kind};
use crate::ConvertError;
use crate::settings::yaml_message;

/// Jobs of a file, and the files that its ConfigMaps hold.
#[derive(Debug, Default)]
pub(super) struct Documents {
    pub(super) jobs: Vec<ClusterJob>,
    /// Texts of the ConfigMaps by their keys, which are names of files in a pod.
    pub(super) files: BTreeMap<String, String>,
}

/// Whether a text is a manifest of Kubernetes rather than settings: its first document names a kind.
pub(crate) fn is_manifest(text: &str) -> bool {
    text.contains("apiVersion")
        && documents(text).is_ok_and(|documents| {
            let first = documents.iter().find(|document| !document.is_null());
            first.is_some_and(|first| first["apiVersion"].is_string() && first["kind"].is_string())
        })
}

fn documents(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let options = serde_saphyr::options! { emit_comments: false };
    serde_saphyr::from_multiple_with_options(text, options)
}

/// Reads the documents of a file.
///
/// # Errors
/// When the file is not YAML, or has no job of a kind that is read.
pub(super) fn read(text: &str) -> Result<Documents, ConvertError> {
    let documents = documents(text).map_err(|error| ConvertError::Manifest(yaml_message(error)))?;
    let mut found = Documents::default();
    let mut other = None;
    for document in documents {
        let (version, kind) = (word(&document, "apiVersion"), word(&document, "kind"));
        match Kind::of(&version, &kind) {
            Some(kind) => found.jobs.push(job(kind, &document)),
            None if kind == "ConfigMap" => found.files.extend(files(&document)),
            None if document.is_null() => {}
            None => {
                other.get_or_insert(ConvertError::Kind { hint: hint(&version, &kind), kind, version });
            }
        }
    }
    match other {
        Some(error) if found.jobs.is_empty() => Err(error),
        None if found.jobs.is_empty() => Err(ConvertError::NoJob),
        _ => Ok(found),
    }
}

fn word(document: &Value, field: &str) -> String {
    document[field].as_str().unwrap_or_default().to_owned()
}

fn job(kind: Kind, document: &Value) -> ClusterJob {
    let map = |field: &str| document[field].as_object().cloned().unwrap_or_default();
    ClusterJob { kind, metadata: map("metadata"), spec: map("spec") }
}

fn files(document: &Value) -> Vec<(String, String)> {
    let empty = Map::new();
    let data = document["data"].as_object().unwrap_or(&empty);
    data.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

/// Returns advice on a kind that is not read, as the end of a sentence.
fn hint(version: &str, kind: &str) -> &'static str {
    match kind {
        "RLTrainingJob" => "; it is a manifest of this project already: rlctl validate checks it",
        "RayJob" | "TrainJob" => "; other versions of the kind have other fields",
        "RayCluster" => "; a RayCluster runs no command: convert the script that is submitted to it",
        "RayCronJob" => "; convert the RayJob that it makes, with its template as spec",
        "TrainingRuntime" | "ClusterTrainingRuntime" => "; convert the TrainJob that names the runtime",
        _ if version.starts_with("kubeflow.org/") => {
            "; convert the script that its pods run, and say their number in workers.count"
        }
        _ => "; convert the script that its pods run",
    }
}
