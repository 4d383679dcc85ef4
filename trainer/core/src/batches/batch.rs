//! The sequences of one training step as the update sees them, with all per-token values that it needs.
//!
//! A batch is filled in this order: [`Batch::from_groups`] after the rollout, log-probs by the actor and the
//! reference, advantages and correction weights. The update then reads it, one micro-batch of rows at a time.
//! Per-token vectors are the concatenation of all **completions** ([`Rows`]); prompt tokens have no loss and
//! no entries.

use std::sync::Arc;

use crate::images::PromptImage;
use crate::packing::PromptGroup;
use crate::rows::Rows;
use crate::types::{Prompt, RewardStatus, Rollout, RolloutGroup, TokenId};

/// One prompt with one completion.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSequence {
    /// The prompt; shared by the samples of a group.
    pub prompt: Arc<Prompt>,
    /// Index among the samples of the rollout group, from 0. Samples left out of the batch count, too.
    pub sample_idx: u32,
    /// The completion's tokens.
    pub completion: Vec<TokenId>,
}

impl BatchSequence {
    /// Returns the tokens of prompt and completion, concatenated.
    pub fn tokens(&self) -> Vec<TokenId> {
        [self.prompt.tokens.as_slice(), self.completion.as_slice()].concat()
    }

    /// Returns the completion without its last token: the completion tokens that are model inputs, since
    /// nothing is predicted from the last one.
    pub fn predicting_completion(&self) -> &[TokenId] {
        &self.completion[..self.completion.len().saturating_sub(1)]
    }

    /// Returns the number of tokens of prompt and completion.
    pub fn num_tokens(&self) -> usize {
        self.prompt.tokens.len() + self.completion.len()
    }
}

/// A conversation or text for supervised learning, with a loss mask; filled by the data loader.
#[derive(Clone, Debug, PartialEq)]
pub struct Demonstration {
    /// Token ids of the full text.
    pub tokens: Vec<TokenId>,
    /// Whether each token is learned: true for what the assistant wrote, its ending token included. As long
    /// as `tokens`; the first token is never learned, since nothing predicts it.
    pub loss_mask: Vec<bool>,
    /// Images of the text in the order of their placeholder tokens, which all precede the first learned
    /// token.
    pub images: Vec<Arc<PromptImage>>,
}

/// The sequences of one step with their rewards, log-probs, values and advantages.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Prompt and completion of each row.
    pub sequences: Vec<BatchSequence>,
    /// Range of each completion in the per-token vectors, and the loss mask.
    pub rows: Rows,
    /// Rollout group index of each row.
    pub groups: Vec<usize>,
    /// Outcome reward of each row, shaped and clipped.
    pub rewards: Vec<f64>,
    /// Reward of each token: the outcome reward at a completion's last token, less the KL penalty if one is
    /// used.
    pub token_rewards: Vec<f64>,
    /// Reward of the greedy completion of each row's prompt; `None` unless an estimator compares with it.
    pub greedy_rewards: Option<Vec<f64>>,
    /// Value of each reward function for each row, `[function][row]`.
    pub reward_parts: Vec<Vec<f64>>,
    /// Names of the functions in `reward_parts`.
    pub reward_names: Vec<String>,
    /// Log-prob of each completion token under the policy that sampled it; empty for completions of a data
    /// set.
    pub rollout_logprobs: Vec<f64>,
    /// Log-prob under the actor before the first update of the batch; `None` until it is computed.
    pub old_logprobs: Option<Vec<f64>>,
    /// Log-prob under the reference policy; `None` without a KL term.
    pub ref_logprobs: Option<Vec<f64>>,
    /// The critic's value of each token before the first update of the batch; `None` without a critic.
    pub values: Option<Vec<f64>>,
    /// Return of each token, the critic's target; `None` without a critic.
    pub returns: Option<Vec<f64>>,
    /// Advantage of each token; zero until it is estimated.
    pub advantages: Vec<f64>,
    /// Token weights of the rollout correction; `None` without one.
    pub importance_weights: Option<Vec<f64>>,
}

impl Batch {
    /// Makes a batch of the rollouts that count ([`RolloutGroup::counted`]), in order. The other rollouts
    /// contribute neither to the loss nor to the statistics of their group.
    pub fn from_groups(groups: &[RolloutGroup], masked: &[RewardStatus]) -> Self {
        let kept: Vec<(usize, &Rollout)> = groups
            .iter()
            .enumerate()
            .flat_map(|(group_idx, group)| group.counted(masked).map(move |rollout| (group_idx, rollout)))
            .collect();
        let mut reward_names: Vec<String> =
            kept.iter().flat_map(|(_, rollout)| rollout.reward.parts.keys().cloned()).collect();
        reward_names.sort_unstable();
        reward_names.dedup();
        let part = |name: &String| {
            kept.iter().map(|(_, r)| r.reward.parts.get(name).copied().unwrap_or(0.0)).collect()
        };
        let rows = Rows::unmasked(kept.iter().map(|(_, rollout)| rollout.completion.tokens.len()));
        let rewards: Vec<f64> = kept.iter().map(|(_, rollout)| rollout.reward.value).collect();
        let logprobs =
            kept.iter().flat_map(|(_, r)| r.completion.rollout_logprobs.iter().map(|l| f64::from(*l)));
        Self {
            sequences: kept
                .iter()
                .map(|(_, rollout)| BatchSequence {
                    prompt: Arc::clone(&rollout.prompt),
                    sample_idx: rollout.sample_idx,
                    completion: rollout.completion.tokens.clone(),
                })
                .collect(),
            groups: kept.iter().map(|(group_idx, _)| *group_idx).collect(),
            token_rewards: rows.at_last_valid(&rewards),
            greedy_rewards: None,
            rewards,
            reward_parts: reward_names.iter().map(part).collect(),
            reward_names,
            rollout_logprobs: logprobs.collect(),
            old_logprobs: None,
            ref_logprobs: None,
            values: None,
            returns: None,
            advantages: vec![0.0; rows.num_tokens()],
            importance_weights: None,
            rows,
        }
    }

    /// Makes a batch for supervised learning. The completion of a row begins at its first learned token,
    /// `loss_mask` becomes the mask of the row, and each advantage is 1. Demonstrations without a learned
    /// token are left out.
    pub fn from_demonstrations<'a>(demonstrations: impl IntoIterator<Item = &'a Demonstration>) -> Self {
        let learned: Vec<(usize, &Demonstration)> = demonstrations
            .into_iter()
            // A first token has nothing before it that could predict it.
            .filter_map(|d| Some((d.loss_mask.iter().skip(1).position(|learned| *learned)? + 1, d)))
            .collect();
        let rows = Rows::from_masks(learned.iter().map(|(start, d)| &d.loss_mask[*start..]));
        let sequence = |(start, demonstration): &(usize, &Demonstration)| BatchSequence {
            prompt: Arc::new(Prompt {
                images: demonstration.images.clone(),
                ..Prompt::from_tokens(0, demonstration.tokens[..*start].to_vec())
            }),
            sample_idx: 0,
            completion: demonstration.tokens[*start..].to_vec(),
        };
        let advantages = vec![1.0; rows.num_tokens()];
        let groups = (0..learned.len()).collect();
        Self { advantages, rows, ..Self::unscored(learned.iter().map(sequence).collect(), groups) }
    }

    /// Makes a batch of these sequences, each in the rollout group of the same index of `groups`. All tokens
    /// count; rewards, log-probs of the rollout and advantages are 0.
    pub(crate) fn unscored(sequences: Vec<BatchSequence>, groups: Vec<usize>) -> Self {
        let rows = Rows::unmasked(sequences.iter().map(|sequence| sequence.completion.len()));
        Self {
            rewards: vec![0.0; sequences.len()],
            token_rewards: vec![0.0; rows.num_tokens()],
            greedy_rewards: None,
            reward_parts: Vec::new(),
            reward_names: Vec::new(),
            rollout_logprobs: vec![0.0; rows.num_tokens()],
            old_logprobs: None,
            ref_logprobs: None,
            values: None,
            returns: None,
            advantages: vec![0.0; rows.num_tokens()],
            importance_weights: None,
            groups,
            sequences,
            rows,
        }
    }

    /// Returns the number of tokens of each row, prompt included.
    pub fn sequence_lens(&self) -> Vec<usize> {
        self.sequences.iter().map(BatchSequence::num_tokens).collect()
    }

    /// Splits `row_idxs` into runs of the same rollout group, which share a prompt.
    pub fn group_runs<'a>(&'a self, row_idxs: &'a [usize]) -> impl Iterator<Item = &'a [usize]> {
        row_idxs.chunk_by(|left, right| self.groups[*left] == self.groups[*right])
    }

    /// Returns the token counts that a token budget is filled with: for each of [`Batch::group_runs`] the
    /// tokens of its prompt, and those that each row adds. The last token of a completion does not count,
    /// since nothing is predicted from it.
    pub fn prompt_groups(&self, row_idxs: &[usize]) -> Vec<PromptGroup> {
        let group = |rows: &[usize]| PromptGroup {
            prompt_len: self.sequences[rows[0]].prompt.tokens.len(),
            lens: rows.iter().map(|row| self.sequences[*row].predicting_completion().len()).collect(),
        };
        self.group_runs(row_idxs).map(group).collect()
    }

    /// Gathers the entries of `row_idxs` from a per-token vector, in that order, for a micro-batch.
    pub fn gather<T: Copy>(&self, row_idxs: &[usize], per_token: &[T]) -> Vec<T> {
        row_idxs.iter().flat_map(|row_idx| per_token[self.rows.range(*row_idx)].iter().copied()).collect()
    }

    /// Writes a micro-batch's per-token values to the entries of `row_idxs`; the inverse of
    /// [`Batch::gather`].
    pub fn scatter<T: Copy>(&self, row_idxs: &[usize], micro_batch: &[T], per_token: &mut [T]) {
        let mut start = 0;
        for row_idx in row_idxs {
            let range = self.rows.range(*row_idx);
            let end = start + range.len();
            per_token[range].copy_from_slice(&micro_batch[start..end]);
            start = end;
        }
    }

    /// Returns a batch of the rows `row_idxs`, in that order; a row may be repeated.
    #[must_use]
    pub fn select(&self, row_idxs: &[usize]) -> Self {
        let tokens = |values: &[f64]| self.gather(row_idxs, values);
        let optional = |values: &Option<Vec<f64>>| values.as_deref().map(tokens);
        let rows = |values: &[f64]| -> Vec<f64> { row_idxs.iter().map(|row| values[*row]).collect() };
        Self {
            sequences: row_idxs.iter().map(|row| self.sequences[*row].clone()).collect(),
            groups: row_idxs.iter().map(|row| self.groups[*row]).collect(),
            rewards: rows(&self.rewards),
            token_rewards: tokens(&self.token_rewards),
            greedy_rewards: self.greedy_rewards.as_deref().map(rows),
            reward_parts: self.reward_parts.iter().map(|values| rows(values)).collect(),
            reward_names: self.reward_names.clone(),
            rollout_logprobs: tokens(&self.rollout_logprobs),
            old_logprobs: optional(&self.old_logprobs),
            ref_logprobs: optional(&self.ref_logprobs),
            values: optional(&self.values),
            returns: optional(&self.returns),
            advantages: tokens(&self.advantages),
            importance_weights: optional(&self.importance_weights),
            rows: self.micro_rows(row_idxs),
        }
    }

    /// Returns the ranges and masks of the completions of `row_idxs` within a micro-batch of these rows.
    pub fn micro_rows(&self, row_idxs: &[usize]) -> Rows {
        Rows::from_masks(row_idxs.iter().map(|row_idx| &self.rows.mask()[self.rows.range(*row_idx)]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fixtures::{prompt, reward, rollout};
    use crate::types::Reward;

    fn batch(masked: &[RewardStatus]) -> Batch {
        let prompt = prompt(&[7, 8]);
        let sample = |tokens: &[TokenId], status| {
            let parts = BTreeMap::from([("a".into(), 2.0)]);
            rollout(&prompt, tokens, Reward { parts, ..reward(1.0, status) })
        };
        let rollouts = vec![
            sample(&[1, 2, 3], RewardStatus::Ok),
            sample(&[4], RewardStatus::Timeout),
            sample(&[5, 6], RewardStatus::Wrong),
        ];
        Batch::from_groups(&[RolloutGroup { prompt, rollouts }], masked)
    }

    #[test]
    fn a_sample_without_a_verdict_is_left_out_only_if_its_status_is_masked() {
        assert_eq!(batch(&[]).sequence_lens(), [5, 3, 4]);
        assert_eq!(batch(&[RewardStatus::Infra]).sequence_lens(), [5, 3, 4]);
        let masked = batch(&[RewardStatus::Timeout]);
        assert_eq!(masked.sequence_lens(), [5, 4]);
        assert_eq!(masked.rollout_logprobs, [-1.0, -2.0, -3.0, -5.0, -6.0]);
        assert_eq!(masked.reward_parts, [[2.0, 2.0]]);
    }

    #[test]
    fn selected_rows_keep_all_that_is_known_of_them() {
        let batch = batch(&[]);
        let mask = vec![true, false, true, true, true, true];
        let rows = batch.rows.with_mask(mask).unwrap();
        let batch = Batch { values: Some((0..6).map(f64::from).collect()), rows, ..batch };
        let drawn = batch.select(&[2, 0, 2]);
        assert_eq!(drawn.rollout_logprobs, [-5.0, -6.0, -1.0, -2.0, -3.0, -5.0, -6.0]);
        assert_eq!(drawn.values.as_deref(), Some(&[4.0, 5.0, 0.0, 1.0, 2.0, 4.0, 5.0][..]));
        assert_eq!(drawn.rows.mask(), [true, true, true, false, true, true, true]);
        assert_eq!(drawn.sequences[0], batch.sequences[2]);
        assert_eq!((drawn.rewards.len(), drawn.reward_parts[0].len(), drawn.groups.len()), (3, 3, 3));
        assert_eq!(batch.select(&[0, 1, 2]), batch);
    }

    #[test]
    fn the_prompt_of_a_group_is_packed_once_if_its_rows_are_adjacent() {
        let batch = batch(&[]);
        let group = |lens: &[usize]| PromptGroup { prompt_len: 2, lens: lens.to_vec() };
        assert_eq!(batch.prompt_groups(&[0, 1, 2]), [group(&[2, 0, 1])]);
        let demonstration =
            Demonstration { tokens: vec![1, 2, 3], loss_mask: vec![false, false, true], images: Vec::new() };
        let two = Batch::from_demonstrations(&[demonstration.clone(), demonstration]);
        assert_eq!(two.prompt_groups(&[1, 0]), [group(&[0]), group(&[0])]);
    }

    #[test]
    fn a_demonstration_is_learned_where_its_mask_says_so() {
        let demonstration = |loss_mask: &[bool]| Demonstration {
            tokens: (0..loss_mask.len() as u32).collect(),
            loss_mask: loss_mask.to_vec(),
            images: Vec::new(),
        };
        let batch = Batch::from_demonstrations(&[
            demonstration(&[false, false, true, false, true]),
            demonstration(&[false, false]),
            demonstration(&[true, true]),
        ]);
        assert_eq!(batch.sequences[0].prompt.tokens, [0, 1]);
        assert_eq!(batch.sequences[0].completion, [2, 3, 4]);
        assert_eq!(batch.sequences[1].completion, [1], "nothing predicts the first token");
        assert_eq!(batch.rows.mask(), [true, false, true, true]);
    }

    #[test]
    fn scatter_undoes_gather_in_any_order() {
        let batch = batch(&[]);
        let gathered = batch.gather(&[2, 0], &batch.rollout_logprobs);
        assert_eq!(gathered, [-5.0, -6.0, -1.0, -2.0, -3.0]);
        let mut restored = vec![0.0; 6];
        batch.scatter(&[2, 0], &gathered, &mut restored);
        assert_eq!(restored, [-1.0, -2.0, -3.0, 0.0, -5.0, -6.0]);
        assert_eq!(batch.micro_rows(&[2, 0]).ranges().collect::<Vec<_>>(), [0..2, 2..5]);
    }
}
