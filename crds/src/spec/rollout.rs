//! `spec.rollout`: how completions are sampled.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DataSpec;
use super::training::Precision;

/// Sampling of completions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RolloutSpec {
    /// Number of completions per prompt, which form a rollout group.
    #[schemars(range(min = 1, max = 4096))]
    pub samples_per_prompt: u32,
    /// Maximum length of a completion in tokens.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_completion_tokens: u32,
    /// Sampling temperature, by which logits are divided, also in all log-probs of the training.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub temperature: f64,
    /// Nucleus sampling: tokens are drawn from the most probable ones that together reach this probability.
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub top_p: f64,
    /// Number of most probable tokens to sample from; 0 for all.
    #[schemars(range(min = 0, max = 16777216))]
    pub top_k: u32,
    /// Minimum probability of a sampled token, relative to that of the most probable one.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: f64,
    /// Penalty on tokens that have already appeared: it divides their positive logits and multiplies their
    /// negative ones.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub repetition_penalty: f64,
    /// Stop strings, which end a completion and are cut off.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub stop: Vec<String>,
    /// Stop token ids, which end a completion in addition to the model's end-of-sequence tokens.
    #[schemars(length(max = 256))]
    pub stop_token_ids: Vec<u32>,
    /// Whether sampling continues past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Compute dtype of the rollout; by default `training.precision`. Where the two differ, so do the
    /// log-probs of rollout and actor (`training/rollout_probs_diff_max`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Maximum number of sequences that are decoded at the same time (vLLM's `max_num_seqs`).
    #[schemars(range(min = 1, max = 65536))]
    pub max_concurrent_sequences: u32,
    /// Maximum number of tokens of one pass of the rollout (verl's `max_num_batched_tokens`): longer prompts
    /// are prefilled in chunks.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_batched_tokens: u32,
    /// Maximum length of prompt and completion together in tokens (verl's `max_model_len`); a completion ends
    /// there. By default `data.maxPromptTokens` and `maxCompletionTokens` together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 33554432))]
    pub max_model_tokens: Option<u32>,
    /// Fraction of a rank's memory that weights and KV cache of the rollout may take together (verl's
    /// `gpu_memory_utilization`): of the GPU's memory, or on CPUs of what the machine or container allows,
    /// divided by its ranks. If the cache is full, a sequence waits, or is preempted and recomputed later.
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub memory_fraction: f64,
    /// Sampling for held-out prompts.
    pub held_out: HeldOutRolloutSpec,
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            samples_per_prompt: 8,
            max_completion_tokens: 512,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            precision: None,
            max_concurrent_sequences: 256,
            max_batched_tokens: 4096,
            max_model_tokens: None,
            memory_fraction: 0.5,
            held_out: HeldOutRolloutSpec::default(),
        }
    }
}

impl RolloutSpec {
    /// Length of the longest prompt and completion together in tokens.
    pub fn longest_sequence(&self, data: &DataSpec) -> u64 {
        let sum = u64::from(data.max_prompt_tokens) + u64::from(self.max_completion_tokens);
        self.max_model_tokens.map_or(sum, |longest| sum.min(longest.into()))
    }
}

/// Sampling for held-out prompts; everything else is as in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeldOutRolloutSpec {
    /// Sampling temperature; 0 takes the most probable token.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: f64,
    /// Number of completions per prompt, whose rewards are averaged.
    #[schemars(range(min = 1, max = 4096))]
    pub samples_per_prompt: u32,
}

impl Default for HeldOutRolloutSpec {
    fn default() -> Self {
        Self { temperature: 0.0, samples_per_prompt: 1 }
    }
}
