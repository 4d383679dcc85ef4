//! Tests of updates: gradients and activations exist together from the second micro-batch on.

use serde_json::{Value, json};

use super::{Phase, bytes, planned};

/// Tokens of a group of [`super::spec`]: a prompt of 512 and eight completions.
const GROUP: u64 = 512 + 8 * 511;
/// Number of parameters of Qwen2.5-0.5B, and of those in its tied embeddings and its final norm.
const PARAMETERS: u64 = 494_032_768;
const OUTSIDE_OF_LAYERS: u64 = 151_936 * 896 + 896;

/// Planned bytes of gradients and of activations in updates of `num_prompts` prompts, in micro-batches of
/// `num_groups` groups.
fn update(num_prompts: u64, num_groups: u64, changes: impl Fn(&mut Value)) -> (u64, u64) {
    let memory = planned(|spec| {
        spec["training"]["promptsPerStep"] = num_prompts.into();
        spec["training"]["maxTokensPerMicroBatch"] = (num_groups * GROUP).into();
        changes(spec);
    })
    .memory
    .unwrap();
    let of = |name| bytes(&memory, Phase::Update, name);
    (of("gradients"), of("activations"))
}

#[test]
fn two_micro_batches_take_all_gradients_and_all_activations() {
    let (gradients, activations) = update(8, 4, |_| {});
    assert_eq!(gradients, 4 * PARAMETERS);
    assert_eq!(activations, update(4, 4, |_| {}).1, "as one micro-batch of the same size");
}

/// A large micro-batch has its peak when its backward pass begins with the head, a small one when it ends.
#[test]
fn one_micro_batch_takes_the_larger_of_its_activations_and_its_gradients() {
    let (gradients, activations) = update(8, 8, |_| {});
    assert_eq!(gradients, 4 * OUTSIDE_OF_LAYERS);
    assert_eq!(activations, 2 * update(8, 4, |_| {}).1);
    let small = update(1, 1, |spec| {
        spec["data"]["maxPromptTokens"] = 16.into();
        spec["rollout"] = json!({"samplesPerPrompt": 2, "maxCompletionTokens": 16});
    });
    assert_eq!(small, (4 * PARAMETERS, 0));
}

/// A cold start's batch of demonstrations may have more micro-batches than the updates after it.
#[test]
fn a_cold_start_of_two_micro_batches_takes_all_gradients_and_all_activations() {
    let cold_start = |spec: &mut Value| {
        spec["algorithm"]["coldStart"] = json!({"steps": 2, "batchSize": 64});
    };
    assert_eq!(update(1, 8, cold_start).0, 4 * PARAMETERS);
}
