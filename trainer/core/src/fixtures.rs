//! Prompts, rollouts, preferences and batches of a few tokens, for tests of this package and of others.

use std::sync::Arc;

use crate::batch::{Batch, BatchSequence};
use crate::preferences::PreferenceExample;
use crate::types::{Completion, FinishReason, Prompt, Reward, RewardStatus, Rollout, TokenId};

/// Returns a prompt of these tokens.
pub fn prompt(tokens: &[TokenId]) -> Arc<Prompt> {
    Arc::new(Prompt::from_tokens(0, tokens.to_vec()))
}

/// Returns a completion of these tokens that ended by itself. All log-probs are 0.
pub fn completion(tokens: &[TokenId], text: &str) -> Completion {
    Completion {
        tokens: tokens.to_vec(),
        rollout_logprobs: vec![0.0; tokens.len()],
        text: text.to_owned(),
        finish_reason: FinishReason::Stop,
    }
}

/// Returns an unshaped reward with this status.
pub fn reward(score: f64, status: RewardStatus) -> Reward {
    Reward { status, ..Reward::from_score(score) }
}

/// Returns the first rollout of a prompt. The log-prob of each token is minus its id.
pub fn rollout(prompt: &Arc<Prompt>, tokens: &[TokenId], reward: Reward) -> Rollout {
    let rollout_logprobs = tokens.iter().map(|token| -(*token as f32)).collect();
    Rollout {
        prompt: Arc::clone(prompt),
        sample_idx: 0,
        policy_version: 0,
        completion: Completion { rollout_logprobs, ..completion(tokens, "") },
        reward,
    }
}

/// Returns an example whose first completion is preferred to the others.
pub fn preference(prompt_tokens: &[TokenId], completions: &[&[TokenId]]) -> Arc<PreferenceExample> {
    Arc::new(PreferenceExample {
        prompt: prompt(prompt_tokens),
        completions: completions.iter().map(|tokens| tokens.to_vec()).collect(),
        labels: (0..completions.len()).map(|idx| idx == 0).collect(),
        margin: 0.0,
        step_ends: Vec::new(),
    })
}

/// Returns a batch of these sequences; `groups` has the rollout group of each. All tokens count, and their
/// log-probs, rewards and advantages are 0.
pub fn batch(sequences: Vec<BatchSequence>, groups: Vec<usize>) -> Batch {
    Batch::unscored(sequences, groups)
}

/// Returns a token id from 2 to 91 that depends on the seed of a sequence and on the token's index in it.
pub fn varied_token(seed: usize, idx: usize) -> TokenId {
    2 + ((seed * 31 + idx * 7 + idx * idx) % 90) as TokenId
}

/// Returns a batch of rollout groups, given by the lengths of prompt and completions. Each prompt and
/// completion has a seed; `token` maps the seed and an index to a token id.
pub fn batch_of_lens(groups: &[(usize, &[usize])], token: impl Fn(usize, usize) -> TokenId) -> Batch {
    let tokens = |seed: usize, len: usize| -> Vec<TokenId> { (0..len).map(|idx| token(seed, idx)).collect() };
    let (mut sequences, mut group_idxs) = (Vec::new(), Vec::new());
    for (group_idx, (prompt_len, lens)) in groups.iter().enumerate() {
        let prompt = Arc::new(Prompt::from_tokens(group_idx as u64, tokens(group_idx, *prompt_len)));
        for len in *lens {
            let completion = tokens(sequences.len() + 9, *len);
            group_idxs.push(group_idx);
            sequences.push(BatchSequence { prompt: Arc::clone(&prompt), sample_idx: 0, completion });
        }
    }
    batch(sequences, group_idxs)
}
