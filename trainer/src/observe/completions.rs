//! Records of a step's completions: rollouts and rewards once they are scored, advantages and log-probs once
//! they are computed.

use std::collections::BTreeMap;

use rlt_core::batch::Batch;
use rlt_core::types::{Rollout, RolloutGroup};

use super::tracking::{CompletionRecord, TrainedCompletion};

/// Returns records of the first groups, full groups until there are at least `num_wanted` records.
pub(super) fn of_groups(
    step: u64,
    held_out: bool,
    groups: &[RolloutGroup],
    num_wanted: usize,
) -> Vec<CompletionRecord> {
    let mut records = Vec::new();
    for (group_idx, group) in groups.iter().enumerate() {
        if records.len() >= num_wanted {
            break;
        }
        records.extend(group.rollouts.iter().map(|rollout| record(step, held_out, group_idx, rollout)));
    }
    records
}

fn record(step: u64, held_out: bool, group_idx: usize, rollout: &Rollout) -> CompletionRecord {
    let Rollout { prompt, sample_idx, policy_version, completion, reward } = rollout;
    CompletionRecord {
        step,
        policy_version: *policy_version,
        held_out,
        group: group_idx,
        sample: *sample_idx,
        data_source: prompt.data_source.clone(),
        prompt: prompt.text.clone(),
        completion: completion.text.clone(),
        ground_truth: prompt.ground_truth.clone(),
        score: reward.score,
        reward: reward.value,
        reward_parts: reward.parts.clone(),
        answer: reward.answer.clone(),
        reward_status: reward.status,
        reward_message: reward.message.clone(),
        finish_reason: completion.finish_reason,
        num_tokens: completion.tokens.len(),
        prompt_token_ids: prompt.tokens.clone(),
        token_ids: completion.tokens.clone(),
        rollout_logprobs: completion.rollout_logprobs.clone(),
        training: None,
    }
}

/// Adds advantages and other per-token values of `batch` to the records of the same step.
pub(crate) fn add_advantages(records: &mut [CompletionRecord], batch: &Batch) {
    for_each_row(records, batch, |record, row_idx| {
        let range = batch.rows.range(row_idx);
        let part = |values: &[f64]| values[range.clone()].iter().map(|value| *value as f32).collect();
        let optional = |values: &Option<Vec<f64>>| values.as_deref().map(part).unwrap_or_default();
        let mask = &batch.rows.mask()[range.clone()];
        let loss_mask = if mask.contains(&false) { mask } else { &[] };
        record.training = Some(TrainedCompletion {
            advantages: part(&batch.advantages),
            loss_mask: loss_mask.iter().map(|counts| u8::from(*counts)).collect(),
            old_logprobs: optional(&batch.old_logprobs),
            ref_logprobs: optional(&batch.ref_logprobs),
            importance_weights: optional(&batch.importance_weights),
            values: optional(&batch.values),
            returns: optional(&batch.returns),
            greedy_reward: batch.greedy_rewards.as_ref().map(|rewards| rewards[row_idx]),
            ..TrainedCompletion::default()
        });
    });
}

/// Adds the log-probs of the actor's updates on `batch`, one per token of the batch, and counts how often
/// each record was drawn.
pub(crate) fn add_updates(records: &mut [CompletionRecord], batch: &Batch, actor_logprobs: &[f64]) {
    for_each_row(records, batch, |record, row_idx| {
        let Some(training) = &mut record.training else { return };
        training.num_draws += 1;
        let logprobs = &actor_logprobs[batch.rows.range(row_idx)];
        training.actor_logprobs = logprobs.iter().map(|logprob| *logprob as f32).collect();
    });
}

/// Calls `add` with each record that has rows in `batch`, once per row.
fn for_each_row(
    records: &mut [CompletionRecord],
    batch: &Batch,
    mut add: impl FnMut(&mut CompletionRecord, usize),
) {
    let places: BTreeMap<(usize, u32), usize> =
        records.iter().enumerate().map(|(idx, record)| ((record.group, record.sample), idx)).collect();
    for (row_idx, (group, sequence)) in batch.groups.iter().zip(&batch.sequences).enumerate() {
        if let Some(place) = places.get(&(*group, sequence.sample_idx)) {
            add(&mut records[*place], row_idx);
        }
    }
}

#[cfg(test)]
mod tests;
