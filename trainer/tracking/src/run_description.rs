//! The description of a run for trackers: its name, its settings, and an identity that every program derives
//! from the run's files.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{StepMetrics, TrackingError};

/// Name and settings of a run, from its resolved manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDescription {
    /// Name of the job.
    pub name: String,
    /// Resolved `spec` of the job.
    pub spec: Value,
}

impl RunDescription {
    /// Reads the description from a run folder, which may be that of another person.
    ///
    /// # Errors
    /// [`TrackingError::NoRun`] if there is no manifest with a name that can be the name of a folder.
    pub fn read(folder: &Path) -> Result<Self, TrackingError> {
        let path = folder.join("manifest.yaml");
        let text = rlt_files::read_to_string(&path, rlt_files::MAX_MANIFEST_BYTES).unwrap_or_default();
        let manifest: Value = serde_saphyr::from_str(&text).unwrap_or_default();
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str).filter(|name| is_plain(name));
        let name = name.ok_or_else(|| TrackingError::NoRun { path: folder.to_path_buf() })?;
        Ok(Self { name: name.to_owned(), spec: manifest["spec"].clone() })
    }

    /// Computes the identity of the run whose first logged step is `first`: 16 hexadecimal digits. A resumed
    /// run keeps that step, so its trackers continue; a run that starts from scratch has another identity.
    pub fn id(&self, first: &StepMetrics) -> String {
        let moment = (first.timestamp * 1e3).round();
        let digest = Sha256::digest(format!("{}\n{moment}", self.name));
        digest.iter().take(8).fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Returns the settings by their paths, such as `training.optimizer.learningRate`; items of lists are
    /// named by their index.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        collect(&self.spec, String::new(), &mut settings);
        settings
    }
}

/// Whether a name, used as the name of a folder, does not lead to another folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

fn collect(value: &Value, path: String, settings: &mut Vec<(String, String)>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| collect(value, below(name), settings));
        }
        Value::Array(items) => {
            let named = items.iter().enumerate();
            named.for_each(|(idx, value)| collect(value, below(&idx.to_string()), settings));
        }
        Value::Null => {}
        Value::String(text) => settings.push((path, text.clone())),
        other => settings.push((path, other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Metrics, Stage};

    /// The name of a run names the folder of its TensorBoard files.
    #[test]
    fn a_run_whose_name_leads_to_another_folder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_run) in [
            ("job-1", true),
            ("a.b", true),
            ("../job", false),
            ("/tmp/job", false),
            ("job/../..", false),
            ("..", false),
            ("", false),
        ] {
            let manifest = format!("metadata: {{name: '{name}'}}");
            std::fs::write(folder.path().join("manifest.yaml"), manifest).unwrap();
            assert_eq!(RunDescription::read(folder.path()).is_ok(), is_run, "{name}");
        }
    }

    fn step(timestamp: f64) -> StepMetrics {
        StepMetrics { stage: Stage::Training, step: 1, timestamp, values: Metrics::new() }
    }

    #[test]
    fn a_run_is_identified_by_its_name_and_the_time_of_its_first_step() {
        let run = |name: &str| RunDescription { name: name.into(), spec: Value::Null };
        let id = run("a").id(&step(1.7e9));
        assert_eq!(id.len(), 16);
        assert_eq!(id, run("a").id(&step(1.7e9)));
        assert_ne!(id, run("b").id(&step(1.7e9)));
        assert_ne!(id, run("a").id(&step(1.7e9 + 0.001)));
    }

    #[test]
    fn settings_are_named_by_their_paths() {
        let spec = json!({ "training": { "steps": 3, "stop": null }, "data": { "train": ["a", "b"] } });
        let settings = RunDescription { name: "a".into(), spec }.settings();
        let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [named("training.steps", "3"), named("data.train.0", "a"), named("data.train.1", "b")];
        assert_eq!(settings, expected);
    }
}
