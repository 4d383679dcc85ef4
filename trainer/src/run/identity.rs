//! The identity of a run by its manifest: the job's name, and the settings that a continuation must not
//! change.

use rlt_api::ValidatedJob;
use rlt_storage::checkpoint::{Checkpoint, RunIdentity};
use serde_json::Value;

use crate::run::error::TrainError;

/// Fields of the manifest that may change between a run and its continuation: length, outputs, trackers, and
/// hardware.
const CONTINUABLE: [&[&str]; 11] = [
    &["metadata"],
    &["spec", "training", "length"],
    &["spec", "training", "steps"],
    &["spec", "training", "epochs"],
    &["spec", "training", "evaluateEvery"],
    &["spec", "training", "offload"],
    &["spec", "checkpoint"],
    &["spec", "tracking"],
    &["spec", "workers"],
    &["spec", "runPolicy"],
    &["spec", "managedBy"],
];

/// Returns the fields that must be equal for a resume, as text.
pub fn lasting_settings(manifest: &str) -> String {
    let Ok(value) = rlt_api::read_yaml::<Value>(manifest) else {
        return manifest.to_owned();
    };
    format!("{:#}", without_continuable(value))
}

fn without_continuable(mut manifest: Value) -> Value {
    for path in CONTINUABLE {
        let (Some(last), parents) = (path.last(), &path[..path.len() - 1]) else { continue };
        let parent = parents.iter().try_fold(&mut manifest, |at, key| at.get_mut(key));
        if let Some(map) = parent.and_then(Value::as_object_mut) {
            map.remove(*last);
        }
    }
    remove_header_values(&mut manifest);
    manifest
}

/// Removes the values of headers of reward servers. They may be keys, which change when they are renewed, and
/// which neither a checkpoint nor an error may contain.
fn remove_header_values(manifest: &mut Value) {
    let functions = manifest.pointer_mut("/spec/rewards/functions").and_then(Value::as_array_mut);
    for function in functions.into_iter().flatten() {
        let headers = function.pointer_mut("/server/headers").and_then(Value::as_array_mut);
        for header in headers.into_iter().flatten().filter_map(Value::as_object_mut) {
            header.remove("value");
        }
    }
}

/// Returns the identity of a run of `job`.
///
/// # Errors
/// [`TrainError::WriteManifest`].
pub fn of_job(job: &ValidatedJob) -> Result<RunIdentity, TrainError> {
    Ok(of_manifest(&job.to_yaml()?))
}

/// Returns the identity of the run whose resolved manifest is `yaml`.
pub fn of_manifest(yaml: &str) -> RunIdentity {
    let manifest: Value = rlt_api::read_yaml(yaml).unwrap_or_default();
    let field = |path: &str| manifest.pointer(path).and_then(Value::as_str);
    let name = field("/metadata/name").unwrap_or_default();
    let run = match field("/metadata/namespace") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let spec = without_continuable(manifest).get_mut("spec").map(Value::take).unwrap_or_default();
    RunIdentity { run, spec }
}

/// Checks that a run may continue from `checkpoint`: one in its own folder must have been saved under the
/// same settings, one that `checkpoint.resumeFrom` names must be of the same `spec.model`, whose adapter
/// settings tensors do not show. That the data is the same is checked by its digest when its position is
/// restored.
///
/// # Errors
/// [`TrainError::OtherRun`].
pub(crate) fn check(identity: &RunIdentity, checkpoint: &Checkpoint, is_own: bool) -> Result<(), TrainError> {
    let Some(saved) = checkpoint.identity()? else { return Ok(()) };
    let differing = identity.differing_setting(&saved, if is_own { "" } else { "/model" });
    differing.map_or(Ok(()), |(field, there, here)| {
        let path = checkpoint.path().to_path_buf();
        Err(TrainError::OtherRun { path, run: saved.run.clone(), field, there, here })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(metadata: &str, steps: u32, learning_rate: &str, alpha: u32) -> RunIdentity {
        of_manifest(&format!(
            "metadata: {metadata}\nspec:\n  model: {{path: m, lora: {{rank: 8, alpha: {alpha}}}}}\n  training: \
             {{steps: {steps}, optimizer: {{learningRate: {learning_rate}}}}}\n"
        ))
    }

    #[test]
    fn a_longer_training_is_the_same_run_and_another_name_or_learning_rate_is_another() {
        let first = run("{name: one}", 10, "1.0e-6", 8);
        assert_eq!(first.difference(&run("{name: one}", 99, "1.0e-6", 8)), None);
        let renamed = run("{name: two}", 10, "1.0e-6", 8);
        assert_eq!(renamed.difference(&first).unwrap(), "it belongs to the job `one`, this job is `two`");
        let elsewhere = run("{name: one, namespace: lab}", 10, "1.0e-6", 8);
        assert!(elsewhere.difference(&first).unwrap().contains("this job is `lab/one`"));
        let said = run("{name: one}", 10, "0.5", 8).difference(&first).unwrap();
        assert!(said.contains("spec.training.optimizer.learningRate: 1e-6 there, 0.5 here"), "{said}");
    }

    #[test]
    fn a_setting_that_only_one_release_has_is_not_a_difference() {
        let new = of_manifest("metadata: {name: a}\nspec: {model: {path: m, added: 1}, list: [{a: 1}]}");
        let old = of_manifest("metadata: {name: a}\nspec: {model: {path: m, removed: 2}, list: [{b: 1}]}");
        assert_eq!((new.difference(&old), old.difference(&new)), (None, None));
        let longer = of_manifest("metadata: {name: a}\nspec: {list: [{a: 1}, {a: 1}]}");
        assert!(longer.difference(&new).unwrap().contains("spec.list: "));
    }

    #[test]
    fn a_key_in_a_header_may_be_renewed_and_is_in_no_identity() {
        let manifest = |key: &str| {
            let headers = format!("[{{name: Authorization, value: {key}}}]");
            let function = format!("{{name: far, server: {{url: u, headers: {headers}}}}}");
            format!("metadata: {{name: a}}\nspec: {{rewards: {{functions: [{function}]}}}}")
        };
        let (first, renewed) = (of_manifest(&manifest("first-key")), of_manifest(&manifest("second-key")));
        assert_eq!(renewed.difference(&first), None);
        for text in [first.spec.to_string(), lasting_settings(&manifest("first-key"))] {
            assert!(text.contains("Authorization") && !text.contains("first-key"), "{text}");
        }
        // Earlier releases wrote the value.
        let spec: Value = rlt_api::read_yaml::<Value>(&manifest("first-key")).unwrap()["spec"].take();
        let earlier = RunIdentity { run: "a".to_owned(), spec };
        assert_eq!(renewed.difference(&earlier), None);
    }

    #[test]
    fn a_run_may_continue_from_another_run_of_the_same_model() {
        let first = run("{name: one}", 10, "1.0e-6", 8);
        assert_eq!(run("{name: two}", 10, "0.5", 8).differing_setting(&first, "/model"), None);
        let differing = run("{name: two}", 10, "0.5", 16).differing_setting(&first, "/model").unwrap();
        assert_eq!(differing, ("spec.model.lora.alpha".into(), "8".into(), "16".into()));
    }
}
