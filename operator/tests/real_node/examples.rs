//! Examples of the repository, shortened for tests.

use serde_json::{Value, json};

use crate::test_namespace::merge;

/// An example with changes to its specification.
pub(crate) fn example(text: &str, changes: &Value) -> Value {
    let mut manifest: Value = serde_saphyr::from_str(text).unwrap();
    merge(&mut manifest["spec"], changes);
    manifest
}

/// The example whose model the sharded one trains, shortened: some of its sums are right.
pub(crate) fn supervised() -> Value {
    let shorter =
        json!({ "training": { "steps": 100, "evaluateEvery": 0 }, "data": { "task": { "numHeldOut": 8 } } });
    example(include_str!("../../../examples/sft/job.yaml"), &shorter)
}
