//! The smallest complete job, for tests in which the trained model does not matter, and changes to manifests.

use serde_json::Value;

/// The job of `rlt-trainer gpu-check`, too.
const JOB: &str = include_str!("../../trainer/src/commands/gpu_check/tiny_job.json");

/// A manifest: three steps of GRPO, one layer, one operator, two prompts of four samples a step. The reward
/// differs between samples of an untrained model already, so that every step has a gradient.
#[expect(clippy::unwrap_used, reason = "a file of this repository")]
pub fn tiny_job() -> Value {
    serde_json::from_str(JOB).unwrap()
}

/// The tiny job with `changes` laid over its `spec` by [`merge`].
pub fn tiny_job_with(changes: Value) -> Value {
    let mut manifest = tiny_job();
    merge(&mut manifest["spec"], changes);
    manifest
}

/// Lays `changes` over `base`: maps are merged, `null` removes, everything else replaces.
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
