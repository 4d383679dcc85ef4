//! Manifests with jobs of other operators and ConfigMaps.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::job::ClusterJob;
use crate::ConvertError;
use crate::settings::yaml_message;

/// Prefixes of the first line of a manifest. No script begins with them.
const BEGINNINGS: [&str; 2] = ["apiVersion:", "kind:"];

/// Kubernetes objects of a file: jobs of other operators, and ConfigMaps.
#[derive(Debug)]
pub struct Manifest {
    pub(super) jobs: Vec<ClusterJob>,
    /// Texts of the ConfigMaps by their keys, which are names of files in a pod.
    pub(super) files: BTreeMap<String, String>,
}

impl Manifest {
    /// Parses a manifest; `None` if the text is something else, such as settings. The first document of a
    /// manifest has a kind.
    ///
    /// # Errors
    /// The text is too large, or it is a manifest that is not valid YAML or has no job of a supported kind.
    pub fn read(text: &str) -> Result<Option<Self>, ConvertError> {
        crate::bounded(text)?;
        if !text.contains("apiVersion") {
            return Ok(None);
        }
        match rlt_api::read_yaml_documents::<Value>(&crate::with_line_feeds(text)) {
            Ok(documents) if documents.first().is_some_and(is_object) => Self::of(&documents).map(Some),
            Err(error) if begins_as_object(text) => Err(ConvertError::Manifest(yaml_message(error))),
            _ => Ok(None),
        }
    }

    fn of(documents: &[Value]) -> Result<Self, ConvertError> {
        let (mut found, mut other) = (Self { jobs: Vec::new(), files: BTreeMap::new() }, None);
        for document in documents {
            let (version, kind) = (word(document, "apiVersion"), word(document, "kind"));
            match ClusterJob::of(document) {
                Some(job) => found.jobs.push(job),
                None if kind == "ConfigMap" => found.files.extend(files(document)),
                None => {
                    other.get_or_insert(ConvertError::Kind { hint: hint(&version, &kind), kind, version });
                }
            }
        }
        if found.jobs.is_empty() { Err(other.unwrap_or(ConvertError::NoJob)) } else { Ok(found) }
    }
}

fn is_object(document: &Value) -> bool {
    document["apiVersion"].is_string() && document["kind"].is_string()
}

/// Whether the first line with content is one of a manifest.
fn begins_as_object(text: &str) -> bool {
    let first = text.lines().find(|line| !(line.trim().is_empty() || line.starts_with(['#', '-'])));
    first.is_some_and(|line| BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)))
}

fn word(document: &Value, field: &str) -> String {
    document[field].as_str().unwrap_or_default().to_owned()
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
