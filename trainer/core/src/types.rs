//! The values of one training step, in the order in which they are created.
//!
//! ```text
//! Prompt -> Completion -> Rollout (+ Reward) -> RolloutGroup -> Batch -> packed micro-batches
//! ```
//! Only data: no arithmetic, no tensors, no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::images::PromptImage;
pub use crate::reward::{FinishReason, RewardStatus};

/// A token id in the model's vocabulary.
pub type TokenId = u32;

/// One problem, ready for the rollout: filled by the data loader, shared by the samples of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Position of the row in its dataset, before shuffling; stable across runs and epochs.
    pub row_idx: u64,
    /// Token ids after the chat template, at least one.
    pub tokens: Vec<TokenId>,
    /// The text behind `tokens`, for records and rewards.
    pub text: String,
    /// The chat messages behind `text`; null where the row has a text.
    pub messages: serde_json::Value,
    /// The data set of the row (verl's `data_source`); rewards are chosen by it.
    pub data_source: String,
    /// The reference of a verifiable reward (verl's `reward_model.ground_truth`).
    pub ground_truth: serde_json::Value,
    /// The row's `extra_info`, handed to rewards as it is.
    pub extra_info: serde_json::Value,
    /// The prompt's images in the order of their placeholder tokens; empty where it is text alone.
    pub images: Vec<Arc<PromptImage>>,
}

/// A sampled completion of a prompt: filled by the rollout engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// New token ids, the ending token included; never empty.
    pub tokens: Vec<TokenId>,
    /// Natural-log probability of each token under the sampling policy at its temperature, before any
    /// truncation by top-k, top-p or min-p; as long as `tokens`.
    pub rollout_logprobs: Vec<f32>,
    /// `tokens` as text without special tokens; a stop string is cut off.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// The verdict on one completion: filled by the reward pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// The weighted sum of all parts, clipped, before any shaping by length: the metric that training should
    /// raise.
    pub score: f64,
    /// The reward in training: `score` after shaping.
    pub value: f64,
    /// Each function's own unweighted value by its name.
    pub parts: BTreeMap<String, f64>,
    /// The completion's answer, by the first function that found one; held-out samples vote with
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether `value` is a verdict; a sample without one is masked out or counts as zero, by
    /// `rewards.onTimeout` and `rewards.onError`.
    pub status: RewardStatus,
    /// The error, for `completions.jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One sampled completion of a prompt with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// The prompt it answers.
    pub prompt: Arc<Prompt>,
    /// Position among the samples of its group, from 0.
    pub sample_idx: u32,
    /// Optimizer steps that the sampling weights had seen.
    pub policy_version: u64,
    /// The completion.
    pub completion: Completion,
    /// Its reward.
    pub reward: Reward,
}

/// All samples of one prompt in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutGroup {
    /// The prompt they share.
    pub prompt: Arc<Prompt>,
    /// `rollout.samplesPerPrompt` rollouts, in the order of their `sample_idx`.
    pub rollouts: Vec<Rollout>,
}
