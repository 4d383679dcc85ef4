//! The smallest complete job, for tests in which the trained model does not matter.

use serde_json::Value;

/// The job of `rlt-trainer gpu-check`, too.
const JOB: &str = include_str!("../../trainer/src/commands/gpu_check/tiny_job.json");

/// A manifest: three steps of GRPO, one layer, one operator, two prompts of four samples a step. The reward
/// differs between samples of an untrained model already, so that every step has a gradient.
#[expect(clippy::unwrap_used, reason = "a file of this repository")]
pub fn tiny_job() -> Value {
    serde_json::from_str(JOB).unwrap()
}
