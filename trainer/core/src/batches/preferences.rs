//! Completions with known preferences, from a data set or from rewards, and batches of them.
//!
//! The completions of an example are adjacent in one group of the batch, so that their prompt is computed
//! once. Their losses are in [`crate::preference`] and [`crate::kto`].

use std::sync::Arc;

use crate::batch::{Batch, BatchSequence};
use crate::types::{Prompt, RewardStatus, Rollout, RolloutGroup, TokenId};

/// A prompt with labelled completions; filled by the data loader.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferenceExample {
    /// The prompt; its text may be empty, its tokens never are.
    pub prompt: Arc<Prompt>,
    /// Token ids of each completion: a pair (chosen, rejected), or a single completion with a label.
    pub completions: Vec<Vec<TokenId>>,
    /// Whether each completion is chosen, or desirable. For a completion of several steps: whether each
    /// labelled step is right.
    pub labels: Vec<bool>,
    /// Margin by which the first completion is better than the second, in the unit of a reward model's
    /// scores.
    pub margin: f64,
    /// Number of completion tokens at the end of each labelled step; empty for completions without steps.
    pub step_ends: Vec<usize>,
}

impl Batch {
    /// Makes a batch of every completion of `examples`, in order. No policy of this run sampled them, so
    /// [`Batch::rollout_logprobs`] is empty.
    pub fn from_preferences(examples: &[Arc<PreferenceExample>]) -> Self {
        Self::of_completions(examples.iter().map(|example| (&example.prompt, example.completions.as_slice())))
    }

    /// Makes a batch of mismatched completions: each prompt of `examples` with the completions of the
    /// previous example. KTO's reference point is measured on them.
    pub fn from_mismatched(examples: &[Arc<PreferenceExample>]) -> Self {
        let before = examples.iter().cycle().skip(examples.len().saturating_sub(1));
        let pairs = examples.iter().zip(before);
        Self::of_completions(pairs.map(|(example, before)| (&example.prompt, before.completions.as_slice())))
    }

    pub(crate) fn of_completions<'a>(
        groups: impl Iterator<Item = (&'a Arc<Prompt>, &'a [Vec<TokenId>])>,
    ) -> Self {
        let (mut sequences, mut group_idxs) = (Vec::new(), Vec::new());
        for (group_idx, (prompt, completions)) in groups.enumerate() {
            for (sample_idx, completion) in (0..).zip(completions) {
                let (prompt, completion) = (Arc::clone(prompt), completion.clone());
                sequences.push(BatchSequence { prompt, sample_idx, completion });
                group_idxs.push(group_idx);
            }
        }
        Self { rollout_logprobs: Vec::new(), ..Self::unscored(sequences, group_idxs) }
    }
}

/// Returns the best and the worst rollout of each group by reward, as a pair (chosen, rejected), among those
/// that count ([`RolloutGroup::counted`]). Among equal rewards the first counts. Groups whose rewards are all
/// equal are left out.
pub fn best_and_worst(groups: &[RolloutGroup], masked: &[RewardStatus]) -> Vec<RolloutGroup> {
    let pair = |group: &RolloutGroup| {
        let counted = || group.counted(masked);
        let value = |rollout: &&Rollout| rollout.reward.value;
        let best = counted().reduce(|best, other| if value(&other) > value(&best) { other } else { best })?;
        let worst =
            counted().reduce(|worst, other| if value(&other) < value(&worst) { other } else { worst })?;
        (value(&best) > value(&worst)).then(|| RolloutGroup {
            prompt: Arc::clone(&group.prompt),
            rollouts: vec![best.clone(), worst.clone()],
        })
    };
    groups.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{preference, prompt, reward, rollout};
    use crate::packing::PromptGroup;

    #[test]
    fn the_prompt_of_a_pair_is_laid_out_once() {
        let pairs = [preference(&[7, 8], &[&[1, 2, 3], &[4]]), preference(&[9], &[&[5], &[6, 7]])];
        let batch = Batch::from_preferences(&pairs);
        let group = |prompt_len, lens: &[usize]| PromptGroup { prompt_len, lens: lens.to_vec() };
        assert_eq!(batch.prompt_groups(&[0, 1, 2, 3]), [group(2, &[2, 0]), group(1, &[0, 1])]);
        assert_eq!(batch.rows.ranges().collect::<Vec<_>>(), [0..3, 3..4, 4..5, 5..7]);
    }

    #[test]
    fn mismatched_completions_follow_the_next_prompt() {
        let examples =
            [preference(&[7], &[&[1], &[2]]), preference(&[8], &[&[3]]), preference(&[9], &[&[4]])];
        let batch = Batch::from_mismatched(&examples);
        let got: Vec<_> = batch.sequences.iter().map(|s| (s.prompt.tokens[0], s.completion[0])).collect();
        assert_eq!(got, [(7, 4), (8, 1), (8, 2), (9, 3)]);
    }

    #[test]
    fn a_group_gives_its_best_and_worst_unless_all_are_equal_or_masked() {
        let group = |rollouts| RolloutGroup { prompt: prompt(&[1]), rollouts };
        let sample = |value, status| rollout(&prompt(&[1]), &[2], reward(value, status));
        let ok = |value| sample(value, RewardStatus::Ok);
        let groups = [
            group(vec![ok(0.5), ok(2.0), ok(-1.0), ok(2.0), sample(9.0, RewardStatus::Timeout)]),
            group(vec![ok(1.0), ok(1.0)]),
            group(vec![sample(0.0, RewardStatus::Timeout), ok(3.0)]),
            group(vec![sample(0.0, RewardStatus::Wrong), ok(1.0)]),
            group(Vec::new()),
        ];
        let values = |masked: &[RewardStatus]| -> Vec<Vec<f64>> {
            let pairs = best_and_worst(&groups, masked);
            pairs.iter().map(|pair| pair.rollouts.iter().map(|r| r.reward.value).collect()).collect()
        };
        assert_eq!(values(&[RewardStatus::Timeout, RewardStatus::Infra]), [[2.0, -1.0], [1.0, 0.0]]);
        // onTimeout: Zero.
        assert_eq!(values(&[RewardStatus::Infra]), [[9.0, -1.0], [3.0, 0.0], [1.0, 0.0]]);
    }
}
