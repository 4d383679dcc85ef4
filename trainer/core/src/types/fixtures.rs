//! Prompts and rollouts of a few tokens, for the tests of this package.

use std::sync::Arc;

use super::{Completion, FinishReason, Prompt, Reward, RewardStatus, Rollout, TokenId};

/// Returns a prompt of these tokens.
pub(crate) fn prompt(tokens: &[TokenId]) -> Arc<Prompt> {
    Arc::new(Prompt::from_tokens(0, tokens.to_vec()))
}

/// Returns an unshaped reward with this status.
pub(crate) fn reward(score: f64, status: RewardStatus) -> Reward {
    Reward { status, ..Reward::from_score(score) }
}

/// Returns the first rollout of a prompt. The log-prob of each token is minus its id.
pub(crate) fn rollout(prompt: &Arc<Prompt>, tokens: &[TokenId], reward: Reward) -> Rollout {
    Rollout {
        prompt: Arc::clone(prompt),
        sample_idx: 0,
        policy_version: 0,
        completion: Completion {
            tokens: tokens.to_vec(),
            rollout_logprobs: tokens.iter().map(|token| -(*token as f32)).collect(),
            text: String::new(),
            finish_reason: FinishReason::Stop,
        },
        reward,
    }
}
