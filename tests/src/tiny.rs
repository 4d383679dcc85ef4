//! The smallest complete job, for tests in which the trained model does not matter, and changes to manifests.

use serde_json::Value;

/// Manifest of the tiny job, which `rlt-trainer gpu-check` trains, too.
const JOB: &str = include_str!("../../trainer/src/commands/gpu_check/tiny_job.json");

/// Returns a manifest with three steps of GRPO, one layer, one operator, and two prompts of four samples per
/// step. Samples of the untrained model already have different rewards, so every step has a gradient.
#[expect(clippy::unwrap_used, reason = "a file of this repository")]
pub fn tiny_job() -> Value {
    serde_json::from_str(JOB).unwrap()
}

/// Returns the tiny job with `changes` merged into its `spec` by [`merge`].
pub fn tiny_job_with(changes: Value) -> Value {
    let mut manifest = tiny_job();
    merge(&mut manifest["spec"], changes);
    manifest
}

/// Merges `changes` into `base`: objects are merged, `null` removes a field, and any other value replaces it.
pub fn merge(base: &mut Value, changes: Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (base, changes) => *base = changes,
    }
}
