//! The identity of a run by its manifest: the job's name, and the settings that a continuation must not
//! change.

use std::collections::BTreeSet;

use rlt_api::ValidatedJob;
use rlt_storage::checkpoint::{Checkpoint, RunIdentity};
use serde_json::Value;

use crate::run::error::TrainError;

/// Fields of the manifest, with all fields below them, that may change between a run and its continuation.
/// Fields of resources, such as memory, do not change results, or only by rounding, as another machine does.
/// Two of them limit the length of demonstrations; that limit is checked against the rows.
const CONTINUABLE: [&str; 25] = [
    // The name of a job is compared separately; labels and annotations are not settings.
    "metadata",
    // Budgets: the run ends later or earlier.
    "spec.training.steps",
    "spec.training.epochs",
    "spec.runPolicy",
    // Outputs: no weight depends on them.
    "spec.training.evaluateEvery",
    "spec.checkpoint",
    "spec.tracking",
    // Memory of updates and scores: denominators count the full update, so its split into micro-batches
    // changes no gradient, and recomputed, gathered or offloaded tensors have the same values. The budget of
    // a micro-batch and `spec.workers.mesh.sp` also limit the length of demonstrations: `demonstration_limit`
    // refuses another limit that changes rows.
    "spec.training.maxTokensPerMicroBatch",
    "spec.training.maxLogprobTokens",
    "spec.training.activationCheckpointing",
    "spec.training.reshardAfterForward",
    "spec.training.unshardedLayers",
    "spec.training.offload",
    "spec.training.roles.critic.maxTokensPerMicroBatch",
    "spec.training.roles.critic.maxForwardTokens",
    "spec.training.roles.critic.offload",
    "spec.training.roles.reference.maxForwardTokens",
    "spec.training.roles.reference.offloadParameters",
    "spec.training.roles.rewardModels.maxForwardTokens",
    "spec.training.roles.rewardModels.offloadParameters",
    // Memory of the rollout: each sample depends on its seed and its tokens, not on other samples of the
    // batch.
    "spec.rollout.maxConcurrentSequences",
    "spec.rollout.maxBatchedTokens",
    "spec.rollout.memoryFraction",
    // Placement: a checkpoint of any number of ranks resumes on any other number.
    "spec.workers",
    "spec.managedBy",
];
/// Maximum number of characters of a value that an error quotes.
const MAX_QUOTED: usize = 100;

/// Describes the first setting that makes two manifests different runs, by its path and both values; `None`
/// if one may continue a run of the other.
pub fn changed_setting(earlier: &str, now: &str) -> Option<String> {
    let read = |text: &str| rlt_api::read_yaml::<Value>(text).unwrap_or_else(|_| text.into());
    changed(read(earlier), read(now))
}

fn changed(earlier: Value, now: Value) -> Option<String> {
    let (earlier, now) = (without_continuable(earlier), without_continuable(now));
    first_change("", Some(&earlier), Some(&now))
}

/// Describes the first leaf that differs, or that only one side has.
fn first_change(path: &str, there: Option<&Value>, here: Option<&Value>) -> Option<String> {
    if there == here {
        return None;
    }
    match (there, here) {
        (Some(Value::Object(there)), Some(Value::Object(here))) => {
            let names: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
            names.into_iter().find_map(|name| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                first_change(&path, there.get(name), here.get(name))
            })
        }
        (Some(Value::Array(there)), Some(Value::Array(here))) if there.len() == here.len() => {
            let mut pairs = there.iter().zip(here).enumerate();
            pairs.find_map(|(idx, (there, here))| {
                first_change(&format!("{path}[{idx}]"), Some(there), Some(here))
            })
        }
        _ => Some(format!("{path}: {} there, {} here", quoted(there), quoted(here))),
    }
}

fn quoted(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| value.to_string().chars().take(MAX_QUOTED).collect())
}

fn without_continuable(mut manifest: Value) -> Value {
    for field in CONTINUABLE {
        remove(&mut manifest, &field.split('.').collect::<Vec<_>>());
    }
    remove_header_values(&mut manifest);
    manifest
}

/// Removes a field, and each enclosing section that becomes empty, as if they were not given.
fn remove(section: &mut Value, path: &[&str]) {
    let (Some((name, rest)), Some(fields)) = (path.split_first(), section.as_object_mut()) else { return };
    if rest.is_empty() {
        fields.remove(*name);
        return;
    }
    let Some(inner) = fields.get_mut(*name) else { return };
    remove(inner, rest);
    if inner.as_object().is_some_and(|left| left.is_empty()) {
        fields.remove(*name);
    }
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

/// Checks that a run may continue from `checkpoint`. A checkpoint in the run's own folder must have been
/// saved under the same settings. A checkpoint that `checkpoint.resumeFrom` names must have the same
/// `spec.model`, because tensors do not show the settings of an adapter. The data is checked when its
/// position is restored: by its digest, and by the length limit of demonstrations.
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
    use std::path::Path;

    use serde_json::json;

    use super::*;

    const JOB: &str = "apiVersion: rltraining.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: one}
spec:
  model:
    architecture: {family: Llama, hiddenSize: 32, intermediateSize: 64, numLayers: 1, numHeads: 2}
    tokenizer: {characters: '0123456789+='}
  data: {task: {kind: Arithmetic, operators: ['+'], maxOperand: 9, numTrain: 16, numHeldOut: 0}, maxPromptTokens: 8}
  rewards: {functions: [{name: exact, kind: Exact}]}
  algorithm: {kind: GRPO}
  rollout: {samplesPerPrompt: 4, maxCompletionTokens: 4}
  training: {steps: 3, promptsPerStep: 2}
  workers: {device: Cpu, threads: 1}
";

    /// A field of a manifest without fields of its own.
    struct Leaf {
        /// Path as errors write it.
        path: String,
        /// JSON pointer of the field.
        pointer: String,
    }

    /// Collects the leaves below the value at `leaf`.
    fn leaves(leaf: Leaf, value: &Value, found: &mut Vec<Leaf>) {
        let Leaf { path, pointer } = &leaf;
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    leaves(Leaf { path, pointer: format!("{pointer}/{name}") }, value, found);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (idx, value) in items.iter().enumerate() {
                    let (path, pointer) = (format!("{path}[{idx}]"), format!("{pointer}/{idx}"));
                    leaves(Leaf { path, pointer }, value, found);
                }
            }
            _ => found.push(leaf),
        }
    }

    /// Returns another value of the same type.
    fn other(value: &Value) -> Value {
        match value {
            Value::Bool(value) => json!(!value),
            Value::Number(_) => json!(12_345),
            Value::String(_) | Value::Null => json!("another"),
            Value::Array(_) | Value::Object(_) => json!(["another"]),
        }
    }

    #[test]
    fn each_field_may_change_or_is_refused_with_its_name_and_both_values() {
        let job = rlt_api::validate(JOB).unwrap().to_yaml().unwrap();
        let manifest: Value = rlt_api::read_yaml(&job).unwrap();
        let mut found = Vec::new();
        leaves(Leaf { path: String::new(), pointer: String::new() }, &manifest, &mut found);
        let (mut num_continuable, mut num_refused) = (0, 0);
        for Leaf { path, pointer } in &found {
            let mut edited = manifest.clone();
            let value = edited.pointer_mut(pointer).unwrap();
            let (there, here) = (value.clone(), other(value));
            *value = here.clone();
            let below = |field: &&str| {
                path.strip_prefix(*field).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            if CONTINUABLE.iter().any(below) {
                num_continuable += 1;
                assert_eq!(changed(manifest.clone(), edited), None, "{path}");
            } else {
                num_refused += 1;
                let expected = format!("{path}: {there} there, {here} here");
                assert_eq!(changed(manifest.clone(), edited), Some(expected));
            }
        }
        assert!(num_continuable > 15 && num_refused > 30, "{num_continuable} and {num_refused}");
    }

    #[test]
    fn budgets_of_a_role_may_be_given_later_and_its_precision_not() {
        let plain = json!({ "spec": { "training": { "seed": 1 } } });
        let with = |reference: Value| json!({ "spec": { "training": { "seed": 1, "roles": { "reference": reference } } } });
        let budgets = json!({ "maxForwardTokens": 64, "offloadParameters": true });
        assert_eq!(changed(plain.clone(), with(budgets.clone())), None);
        assert_eq!(changed(with(budgets), plain.clone()), None);
        let refused = changed(plain, with(json!({ "precision": "Fp32" }))).unwrap();
        assert!(refused.starts_with("spec.training.roles: nothing there, "), "{refused}");
    }

    #[test]
    fn every_field_that_may_change_is_documented() {
        let read = |name: &str| {
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
        };
        let (reference, how_to) = (read("reference.md"), read("how-to.md"));
        for field in CONTINUABLE.iter().filter(|field| **field != "metadata") {
            let is_field =
                reference.contains(&format!("`{field}`")) || reference.contains(&format!("`{field}."));
            assert!(is_field, "{field} is no field of a manifest");
            let short = field.trim_start_matches("spec.");
            assert!(how_to.contains(&format!("`{short}`")), "docs/how-to.md says that {short} may change");
        }
    }

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
        let text = first.spec.to_string();
        assert!(text.contains("Authorization") && !text.contains("first-key"), "{text}");
        assert_eq!(changed_setting(&manifest("first-key"), &manifest("second-key")), None);
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
