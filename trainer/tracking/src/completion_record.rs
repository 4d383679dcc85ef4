//! A completion with its reward and the values of its tokens: a line of `completions.jsonl`.
//!
//! Lines contain full rollout groups, so that advantages, ratios and the policy loss of a step can be
//! recomputed from the file alone. The caller decides which completions are recorded.

use std::collections::BTreeMap;

use rlt_algorithms::reward::{FinishReason, RewardStatus};
use serde::{Deserialize, Deserializer, Serialize};

/// One completion: a line of `completions.jsonl`.
///
/// Each `Vec<f32>` has an entry per element of `token_ids`; a value that is not finite is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// Number of finished training steps, including the step to which the completion belongs.
    pub step: u64,
    /// Number of finished steps that the sampling weights had received.
    #[serde(default)]
    pub policy_version: u64,
    /// Whether the completion is part of an evaluation, on a held-out prompt.
    #[serde(default)]
    pub held_out: bool,
    /// Index of the rollout group among the groups of the step or of the evaluation, from 0.
    #[serde(default)]
    pub group: usize,
    /// Index among the samples of the group, from 0.
    #[serde(default)]
    pub sample: u32,
    /// Name of the prompt's data set.
    pub data_source: String,
    /// Text of the prompt.
    pub prompt: String,
    /// Text that the policy generated.
    pub completion: String,
    /// Ground truth with which reward functions compared the completion.
    pub ground_truth: serde_json::Value,
    /// Weighted sum of the reward functions, before shaping.
    #[serde(default)]
    pub score: f64,
    /// Reward after weighting, clipping and shaping.
    pub reward: f64,
    /// Unweighted value of each reward function, by its name.
    pub reward_parts: BTreeMap<String, f64>,
    /// Answer found in the completion by the first reward function that found one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether the reward is valid, or why not.
    pub reward_status: RewardStatus,
    /// Error message of the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_message: Option<String>,
    /// Reason why sampling ended.
    pub finish_reason: FinishReason,
    /// Length of the completion in tokens.
    pub num_tokens: usize,
    /// Token ids of the prompt.
    #[serde(default)]
    pub prompt_token_ids: Vec<u32>,
    /// Token ids of the completion, the ending token included.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Natural-log probability of each token under the sampling weights, at the sampling temperature.
    #[serde(default, deserialize_with = "numbers")]
    pub rollout_logprobs: Vec<f32>,
    /// Values of the completion in the policy-gradient step; absent in evaluations and for other algorithms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainedCompletion>,
}

/// Values of a completion in a policy-gradient step; vectors have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedCompletion {
    /// Number of times that the completion is in the batch of the actor's update: 0 if its reward's status is
    /// masked or the actor was not updated, above 1 only with `algorithm.reweighting`.
    pub num_draws: u32,
    /// Advantage of each token.
    #[serde(default, deserialize_with = "numbers")]
    pub advantages: Vec<f32>,
    /// 1 for tokens that count in the loss, 0 for others; absent if all count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss_mask: Vec<u8>,
    /// Log-probs under the actor in the last update that had the completion, before its optimizer step.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub actor_logprobs: Vec<f32>,
    /// Log-probs under the actor before the first update of the step; absent if they equal `actor_logprobs`,
    /// because the step has one update.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub old_logprobs: Vec<f32>,
    /// Log-probs under the reference; absent without a KL term.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub ref_logprobs: Vec<f32>,
    /// Weights of `algorithm.importanceCorrection`; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub importance_weights: Vec<f32>,
    /// Values of the critic before its update; absent without a critic.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub values: Vec<f32>,
    /// Returns, the critic's targets; absent without a critic.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub returns: Vec<f32>,
    /// Reward of the prompt's greedy completion; absent unless the estimator compares with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy_reward: Option<f64>,
}

impl CompletionRecord {
    /// Returns the record without the values of its tokens, so that the records of a long run fit into
    /// memory.
    #[must_use]
    pub fn without_tokens(self) -> Self {
        Self {
            prompt_token_ids: Vec::new(),
            token_ids: Vec::new(),
            rollout_logprobs: Vec::new(),
            training: None,
            ..self
        }
    }
}

/// Reads numbers, where `null` is NaN: JSON cannot represent numbers that are not finite.
fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    let numbers = Vec::<Option<f32>>::deserialize(deserializer)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f32::NAN)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_prob_that_is_not_finite_is_read_back_as_one() {
        let training = TrainedCompletion { advantages: vec![f32::NAN, 0.5], ..TrainedCompletion::default() };
        let record = CompletionRecord { training: Some(training), ..CompletionRecord::default() };
        let line = serde_json::to_string(&record).unwrap();
        assert!(line.contains(r#""advantages":[null,0.5]"#), "{line}");
        let back: CompletionRecord = serde_json::from_str(&line).unwrap();
        let advantages = back.training.unwrap().advantages;
        assert!(advantages[0].is_nan() && advantages[1] == 0.5, "{advantages:?}");
    }
}
