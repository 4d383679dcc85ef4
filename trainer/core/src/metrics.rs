//! Metrics of one step, under verl's names, so that dashboards made for verl read them unchanged.
//!
//! Metrics of a step's rollouts are computed here; those of single modules are computed in the modules
//! ([`crate::loss::LossMetrics`], [`crate::importance::mismatch_metrics`]). The trackers write them. Units
//! and meanings of all names are in `docs/metrics.md`.

use std::collections::BTreeMap;

use crate::types::{FinishReason, RewardStatus, RolloutGroup};

/// The metrics of one step by name.
pub type Metrics = BTreeMap<String, f64>;

/// Adds `<name>/mean`, `<name>/max` and `<name>/min` of `values`; nothing if there are no values.
pub fn summarize(metrics: &mut Metrics, name: &str, values: impl IntoIterator<Item = f64>) {
    let (mut sum, mut num, mut max, mut min) = (0.0, 0.0, f64::NEG_INFINITY, f64::INFINITY);
    for value in values {
        sum += value;
        num += 1.0;
        max = f64::max(max, value);
        min = f64::min(min, value);
    }
    if num > 0.0 {
        metrics.insert(format!("{name}/mean"), sum / num);
        metrics.insert(format!("{name}/max"), max);
        metrics.insert(format!("{name}/min"), min);
    }
}

/// Computes the metrics of rewards, lengths and endings of a step's rollouts: `critic/score`,
/// `critic/rewards`, `response_length`, `prompt_length`, `train/frac_reward_zero_std`,
/// `reward/<function>/mean`, `reward/error_ratio`, `reward/num_<status>`. Samples of the `masked` statuses
/// have no advantage, so they do not count in `train/frac_reward_zero_std`.
pub fn rollout_metrics(groups: &[RolloutGroup], masked: &[RewardStatus]) -> Metrics {
    let mut metrics = Metrics::new();
    let rollouts: Vec<_> = groups.iter().flat_map(|group| &group.rollouts).collect();
    if rollouts.is_empty() {
        return metrics;
    }
    let valued = || rollouts.iter().filter(|r| r.reward.status.is_verdict());
    summarize(&mut metrics, "critic/score", valued().map(|r| r.reward.score));
    summarize(&mut metrics, "critic/rewards", valued().map(|r| r.reward.value));
    summarize(&mut metrics, "response_length", rollouts.iter().map(|r| r.completion.tokens.len() as f64));
    summarize(&mut metrics, "prompt_length", groups.iter().map(|g| g.prompt.tokens.len() as f64));
    let share = |num: usize, of: usize| num as f64 / of.max(1) as f64;
    let reasons = || rollouts.iter().map(|r| r.completion.finish_reason);
    let clipped = reasons().filter(|reason| reason.is_truncated()).count();
    metrics.insert("response_length/clip_ratio".into(), share(clipped, rollouts.len()));
    let by_context = reasons().filter(|reason| *reason == FinishReason::Context).count();
    if by_context > 0 {
        metrics.insert("response_length/context_clip_ratio".into(), share(by_context, rollouts.len()));
    }
    let errors = rollouts.len() - valued().count();
    metrics.insert("reward/error_ratio".into(), share(errors, rollouts.len()));
    for status in RewardStatus::ALL {
        let num = rollouts.iter().filter(|rollout| rollout.reward.status == status).count();
        metrics.insert(format!("reward/num_{}", status.name()), num as f64);
    }
    let settled = groups.iter().filter(|group| has_equal_rewards(group, masked)).count();
    metrics.insert("train/frac_reward_zero_std".into(), share(settled, groups.len()));
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in valued().flat_map(|r| &r.reward.parts) {
        parts.entry(name).or_default().push(*value);
    }
    for (name, values) in parts {
        metrics.insert(format!("reward/{name}/mean"), values.iter().sum::<f64>() / values.len() as f64);
    }
    metrics
}

/// Whether all rewards of a group, apart from masked ones, are equal, so that its advantages vanish. True if
/// at most one sample is not masked.
fn has_equal_rewards(group: &RolloutGroup, masked: &[RewardStatus]) -> bool {
    let mut values = group.counted(masked).map(|rollout| rollout.reward.value);
    let first = values.next();
    values.all(|value| Some(value) == first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::{Completion, Prompt, Reward, Rollout};

    fn group(rewards: &[(f64, RewardStatus)]) -> RolloutGroup {
        let prompt = Arc::new(Prompt {
            row_idx: 0,
            tokens: vec![1],
            text: String::new(),
            messages: serde_json::Value::Null,
            data_source: String::new(),
            ground_truth: serde_json::Value::Null,
            extra_info: serde_json::Value::Null,
            images: Vec::new(),
        });
        let rollout = |(value, status): &(f64, RewardStatus)| Rollout {
            prompt: Arc::clone(&prompt),
            sample_idx: 0,
            policy_version: 0,
            completion: Completion {
                tokens: vec![2],
                rollout_logprobs: vec![-1.0],
                text: String::new(),
                finish_reason: FinishReason::Stop,
            },
            reward: Reward {
                score: *value,
                value: *value,
                parts: BTreeMap::new(),
                answer: None,
                status: *status,
                message: None,
            },
        };
        RolloutGroup { rollouts: rewards.iter().map(rollout).collect(), prompt: Arc::clone(&prompt) }
    }

    #[test]
    fn masked_samples_make_no_difference_in_a_group() {
        use RewardStatus::{Infra, Ok, Timeout, Wrong};
        let groups = [
            group(&[(1.0, Ok), (1.0, Ok), (0.0, Timeout)]),
            group(&[(1.0, Ok), (0.0, Infra)]),
            group(&[(1.0, Ok), (0.0, Wrong), (0.0, Infra)]),
            group(&[(0.0, Ok), (1.0, Ok)]),
        ];
        let share = |masked: &[RewardStatus]| rollout_metrics(&groups, masked)["train/frac_reward_zero_std"];
        assert_eq!(share(&[Timeout, Infra]), 0.5);
        // onTimeout: Zero, and onError: Zero as well.
        assert_eq!(share(&[Infra]), 0.25);
        assert_eq!(share(&[]), 0.0);
    }

    #[test]
    fn completions_that_the_context_cuts_count_as_clipped_and_on_their_own() {
        let mut groups = [group(&[(0.0, RewardStatus::Ok); 4])];
        let ratios = |groups: &[RolloutGroup]| {
            let metrics = rollout_metrics(groups, &[]);
            let ratio = |name: &str| metrics.get(&format!("response_length/{name}")).copied();
            [ratio("clip_ratio"), ratio("context_clip_ratio")]
        };
        assert_eq!(ratios(&groups), [Some(0.0), None]);
        groups[0].rollouts[0].completion.finish_reason = FinishReason::Length;
        assert_eq!(ratios(&groups), [Some(0.25), None]);
        groups[0].rollouts[1].completion.finish_reason = FinishReason::Context;
        assert_eq!(ratios(&groups), [Some(0.5), Some(0.25)]);
    }

    #[test]
    fn a_summary_of_nothing_is_absent() {
        let mut metrics = Metrics::new();
        summarize(&mut metrics, "critic/score", []);
        assert!(metrics.is_empty());
        summarize(&mut metrics, "critic/score", [1.0, 3.0]);
        assert_eq!(metrics["critic/score/mean"], 2.0);
        assert_eq!(metrics["critic/score/max"], 3.0);
        assert_eq!(metrics["critic/score/min"], 1.0);
    }
}
