//! A completion with its verdict and the numbers of its tokens: a line of `completions.jsonl`.
//!
//! Lines hold whole rollout groups, so that advantages, ratios and the policy loss of a step can be computed
//! again from the file alone. Which completions are recorded is not decided here.

use std::collections::BTreeMap;

use rlt_algorithms::reward::{FinishReason, RewardStatus};
use serde::{Deserialize, Deserializer, Serialize};

/// One completion: a line of `completions.jsonl`.
///
/// A vector of `f32` has an entry for each of `token_ids`; a value that is not finite is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// Finished steps of the training when it was sampled, the step it belongs to included.
    pub step: u64,
    /// Finished steps that the weights which sampled it had seen.
    #[serde(default)]
    pub policy_version: u64,
    /// Whether it answers a held-out prompt in an evaluation.
    #[serde(default)]
    pub held_out: bool,
    /// Its rollout group: position among the groups of the step or of the evaluation, from 0.
    #[serde(default)]
    pub group: usize,
    /// Position among the samples of its group, from 0.
    #[serde(default)]
    pub sample: u32,
    /// The data set of the prompt.
    pub data_source: String,
    /// The prompt as text.
    pub prompt: String,
    /// What the policy wrote.
    pub completion: String,
    /// What rewards compared it with.
    pub ground_truth: serde_json::Value,
    /// The weighted sum of the reward functions, before shaping.
    #[serde(default)]
    pub score: f64,
    /// The reward after weighting, clipping and shaping.
    pub reward: f64,
    /// Each reward function's own unweighted value by its name.
    pub reward_parts: BTreeMap<String, f64>,
    /// What the completion answers, by the first reward function that found an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether the reward can be trusted.
    pub reward_status: RewardStatus,
    /// What went wrong with the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_message: Option<String>,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
    /// Length of the completion in tokens.
    pub num_tokens: usize,
    /// The prompt's token ids.
    #[serde(default)]
    pub prompt_token_ids: Vec<u32>,
    /// The completion's token ids, the ending token included.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Natural-log probability of each token under the weights that sampled it, at the sampling temperature.
    #[serde(default, deserialize_with = "numbers")]
    pub rollout_logprobs: Vec<f32>,
    /// What the policy gradient made of it; absent in evaluations and for other algorithms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainedCompletion>,
}

/// What a step of a policy gradient knows of a completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedCompletion {
    /// How often the completion is in the batch of the actor's update: 0 where its reward's status is
    /// masked or the actor was not updated, above 1 only with `algorithm.reweighting`.
    pub num_draws: u32,
    /// Advantage of each token.
    #[serde(default, deserialize_with = "numbers")]
    pub advantages: Vec<f32>,
    /// 1 for tokens that count in the loss, 0 for others; absent where all count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss_mask: Vec<u8>,
    /// Log-probs under the actor as the last update that had the completion saw it, before its optimizer
    /// step.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub actor_logprobs: Vec<f32>,
    /// Log-probs under the actor before the first update of the step; absent where they are
    /// `actor_logprobs`, because the step has one update.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub old_logprobs: Vec<f32>,
    /// Log-probs under the reference; absent without a KL term.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub ref_logprobs: Vec<f32>,
    /// Weights of `algorithm.importanceCorrection`; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub importance_weights: Vec<f32>,
    /// Values of the critic before its update; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub values: Vec<f32>,
    /// Returns that the critic learns; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub returns: Vec<f32>,
    /// Reward of the prompt's greedy completion; absent unless the estimator compares with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy_reward: Option<f64>,
}

impl CompletionRecord {
    /// The record without the numbers of its tokens: a long run's records then fit into memory.
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

/// JSON has no number that is not finite: they are written as null.
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
