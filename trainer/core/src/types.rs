//! The data of one training step, in the order in which it is created.
//!
//! ```text
//! Prompt -> Completion -> Rollout (+ Reward) -> RolloutGroup -> Batch -> packed micro-batches
//! ```
//! These types hold data and say which samples of a group count: they have no arithmetic, tensors or I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::images::PromptImage;
pub use crate::reward::{FinishReason, RewardStatus};

/// A token id in the model's vocabulary.
pub type TokenId = u32;

/// A problem, ready for the rollout; filled by the data loader, shared by the samples of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Index of the row in its dataset, before shuffling; stable across runs and epochs.
    pub row_idx: u64,
    /// Token ids after the chat template, at least one.
    pub tokens: Vec<TokenId>,
    /// Text from which `tokens` were made, for records and rewards.
    pub text: String,
    /// Chat messages from which `text` was made; null if the row has a text.
    pub messages: serde_json::Value,
    /// Name of the row's data set (verl's `data_source`), by which rewards are chosen.
    pub data_source: String,
    /// Reference of a verifiable reward (verl's `reward_model.ground_truth`).
    pub ground_truth: serde_json::Value,
    /// The row's `extra_info`, passed to rewards unchanged.
    pub extra_info: serde_json::Value,
    /// Images of the prompt in the order of their placeholder tokens; empty for a text prompt.
    pub images: Vec<Arc<PromptImage>>,
}

impl Prompt {
    /// Makes a prompt of tokens alone: without text, data source, ground truth and images.
    pub fn from_tokens(row_idx: u64, tokens: Vec<TokenId>) -> Self {
        Self {
            row_idx,
            tokens,
            text: String::new(),
            messages: serde_json::Value::Null,
            data_source: String::new(),
            ground_truth: serde_json::Value::Null,
            extra_info: serde_json::Value::Null,
            images: Vec::new(),
        }
    }
}

/// A sampled completion of a prompt; filled by the rollout engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Generated token ids, the ending token included; never empty.
    pub tokens: Vec<TokenId>,
    /// Natural-log probability of each token under the sampling policy at its temperature, before any
    /// truncation by top-k, top-p or min-p; as long as `tokens`.
    pub rollout_logprobs: Vec<f32>,
    /// Text of `tokens` without special tokens; a stop string is cut off.
    pub text: String,
    /// Reason why sampling ended: an ending token or stop string, or which limit.
    pub finish_reason: FinishReason,
}

/// The reward of one completion; filled by the reward pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// Weighted sum of all parts, clipped, before any shaping by length: the metric that training should
    /// raise.
    pub score: f64,
    /// Reward used in training: `score` after shaping.
    pub value: f64,
    /// Unweighted value of each reward function, by its name.
    pub parts: BTreeMap<String, f64>,
    /// Answer found in the completion by the first function that found one; held-out samples vote with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether `value` is a verdict, or why not. A sample without a verdict is masked out or counts as zero,
    /// by `rewards.onTimeout` and `rewards.onError`.
    pub status: RewardStatus,
    /// Error message, for `completions.jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Reward {
    /// Makes the reward of a computed score: not shaped, and without parts, answer and message.
    pub fn from_score(score: f64) -> Self {
        Self {
            score,
            value: score,
            parts: BTreeMap::new(),
            answer: None,
            status: RewardStatus::Ok,
            message: None,
        }
    }
}

/// One sampled completion of a prompt with its reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// The prompt that was completed.
    pub prompt: Arc<Prompt>,
    /// Index among the samples of the group, from 0.
    pub sample_idx: u32,
    /// Number of optimizer steps that the sampling weights had received.
    pub policy_version: u64,
    /// The sampled completion.
    pub completion: Completion,
    /// Reward of the completion.
    pub reward: Reward,
}

/// All samples of one prompt in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutGroup {
    /// The prompt that all samples share.
    pub prompt: Arc<Prompt>,
    /// `rollout.samplesPerPrompt` rollouts, in the order of their `sample_idx`.
    pub rollouts: Vec<Rollout>,
}

impl RolloutGroup {
    /// Returns the rollouts that count in the loss and in the statistics of the group, in order: those whose
    /// reward has none of the `masked` statuses.
    pub fn counted<'a>(&'a self, masked: &'a [RewardStatus]) -> impl Iterator<Item = &'a Rollout> {
        self.rollouts.iter().filter(move |rollout| !masked.contains(&rollout.reward.status))
    }
}
