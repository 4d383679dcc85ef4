//! Rules of `spec.rollout`, and the length of the longest sequence. Token budgets of passes are in `budgets`.

use super::{Check, Rule};
use crate::spec::RLTrainingJobSpec;

/// Length of the longest sequence in tokens.
pub(super) fn longest(spec: &RLTrainingJobSpec) -> u64 {
    spec.rollout.longest_sequence(&spec.data)
}

/// CEL condition that the CEL number `tokens` is at least the longest sequence: prompt and completion, or
/// `rollout.maxModelTokens` where that is less.
pub(super) fn cel_is_longest_within(tokens: &str) -> String {
    let limit = "self.rollout.maxModelTokens";
    format!(
        "({tokens} >= self.data.maxPromptTokens + self.rollout.maxCompletionTokens || \
         (has({limit}) && {tokens} >= {limit}))"
    )
}

fn at_least_longest(spec: &RLTrainingJobSpec) -> String {
    format!("at least {}", longest(spec))
}

/// Whether passes of `tokens` on each of `sp` ranks hold the longest sequence.
pub(super) fn holds_longest(spec: &RLTrainingJobSpec, tokens: Option<u32>, sp: u32) -> bool {
    tokens.is_none_or(|tokens| u64::from(tokens) * u64::from(sp) >= longest(spec))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.rollout.heldOut",
        at: "samplesPerPrompt",
        reads: &["samplesPerPrompt", "temperature"],
        message: "at temperature 0 all samples are equal: samplesPerPrompt must be 1",
        cel: || "self.temperature > 0.0 || self.samplesPerPrompt == 1".into(),
        holds: Check::Spec(|spec| {
            spec.rollout.held_out.temperature > 0.0 || spec.rollout.held_out.samples_per_prompt == 1
        }),
        allowed: Some(|_| "1, or a temperature above 0".into()),
    },
    Rule {
        scope: "spec.rollout",
        at: "maxBatchedTokens",
        reads: &["maxBatchedTokens", "maxConcurrentSequences"],
        message: "maxBatchedTokens must be at least maxConcurrentSequences: each sequence decodes one token in a pass",
        cel: || "self.maxBatchedTokens >= self.maxConcurrentSequences".into(),
        holds: Check::Spec(|spec| spec.rollout.max_batched_tokens >= spec.rollout.max_concurrent_sequences),
        allowed: Some(|spec| {
            format!("at least {}, or fewer maxConcurrentSequences", spec.rollout.max_concurrent_sequences)
        }),
    },
    Rule {
        scope: "spec",
        at: "rollout.maxModelTokens",
        reads: &["rollout.maxModelTokens", "data.maxPromptTokens"],
        message: "maxModelTokens must be above data.maxPromptTokens: the longest prompt needs room for a completion",
        cel: || {
            "!has(self.rollout.maxModelTokens) || self.rollout.maxModelTokens > self.data.maxPromptTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            spec.rollout.max_model_tokens.is_none_or(|longest| longest > spec.data.max_prompt_tokens)
        }),
        allowed: Some(|spec| format!("at least {}", u64::from(spec.data.max_prompt_tokens) + 1)),
    },
    Rule {
        scope: "spec",
        at: "model.architecture.maxPositionEmbeddings",
        reads: &[
            "model.architecture.maxPositionEmbeddings",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxPositionEmbeddings must hold data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || {
            let held = cel_is_longest_within("self.model.architecture.maxPositionEmbeddings");
            format!("!has(self.model.architecture) || {held}")
        },
        holds: Check::Spec(|spec| {
            holds_longest(
                spec,
                spec.model.architecture.as_ref().map(|shape| shape.max_position_embeddings),
                1,
            )
        }),
        allowed: Some(at_least_longest),
    },
];
