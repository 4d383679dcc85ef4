//! What one step reports, under verl's names, so that dashboards made for verl read it unchanged.
//!
//! Values in, a map out; who writes the map where is not decided here. Units and meanings of all names are in
//! `docs/metrics.md`.

use std::collections::BTreeMap;

use crate::types::{FinishReason, RewardStatus, RolloutGroup};

/// The metrics of one step by name.
pub type Metrics = BTreeMap<String, f64>;

/// Adds `<name>/mean`, `<name>/max` and `<name>/min` of `values`; nothing for no values.
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

/// Rewards, lengths and endings of a step's rollouts: `critic/score`, `critic/rewards`, `response_length`,
/// `prompt_length`, `train/frac_reward_zero_std`, `reward/<function>/mean`, `reward/error_ratio`.
pub fn rollout_metrics(groups: &[RolloutGroup]) -> Metrics {
    let mut metrics = Metrics::new();
    let rollouts: Vec<_> = groups.iter().flat_map(|group| &group.rollouts).collect();
    if rollouts.is_empty() {
        return metrics;
    }
    let valued = || rollouts.iter().filter(|r| r.reward.status == RewardStatus::Ok);
    summarize(&mut metrics, "critic/score", valued().map(|r| r.reward.value));
    summarize(&mut metrics, "response_length", rollouts.iter().map(|r| r.completion.tokens.len() as f64));
    summarize(&mut metrics, "prompt_length", groups.iter().map(|g| g.prompt.tokens.len() as f64));
    let share = |num: usize, of: usize| num as f64 / of.max(1) as f64;
    let clipped = rollouts.iter().filter(|r| r.completion.finish_reason == FinishReason::Length).count();
    metrics.insert("response_length/clip_ratio".into(), share(clipped, rollouts.len()));
    let errors = rollouts.len() - valued().count();
    metrics.insert("reward/error_ratio".into(), share(errors, rollouts.len()));
    let settled = groups.iter().filter(|group| has_equal_rewards(group)).count();
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

/// Whether a group teaches nothing because all of its rewards are the same.
fn has_equal_rewards(group: &RolloutGroup) -> bool {
    group.rollouts.windows(2).all(|pair| pair[0].reward.value == pair[1].reward.value)
}

/// How far the log-probs of the rollout are from the actor's own on the same tokens, over all unmasked tokens:
/// `training/rollout_probs_diff_{max,mean,std}`, `training/rollout_actor_probs_pearson_corr`,
/// `training/rollout_logprobs_diff_max`, `rollout_corr/{kl,k3_kl}`. On one device all differences are rounding.
///
/// `kl` is the mean of rollout minus actor log-probs, `k3_kl` its non-negative estimator
/// (<http://joschu.net/blog/kl-approx.html>).
pub fn mismatch_metrics(rollout_logprobs: &[f64], actor_logprobs: &[f64], loss_mask: &[bool]) -> Metrics {
    let logprobs = rollout_logprobs.iter().zip(actor_logprobs).zip(loss_mask);
    let pairs: Vec<(f64, f64)> =
        logprobs.filter(|(_, counts)| **counts).map(|((a, b), _)| (*a, *b)).collect();
    let mut metrics = Metrics::new();
    if pairs.is_empty() {
        return metrics;
    }
    let num = pairs.len() as f64;
    let mean = |value: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / num;
    let max = |value: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(value).fold(0.0, f64::max);
    let difference = |p: &(f64, f64)| (p.0.exp() - p.1.exp()).abs();
    let average = mean(&difference);
    let variance = mean(&|p| (difference(p) - average).powi(2));
    let mut insert = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
    insert("training/rollout_probs_diff_max", max(&difference));
    insert("training/rollout_probs_diff_mean", average);
    insert("training/rollout_probs_diff_std", variance.sqrt());
    insert("training/rollout_logprobs_diff_max", max(&|p| (p.0 - p.1).abs()));
    insert("rollout_corr/kl", mean(&|p| p.0 - p.1));
    insert("rollout_corr/k3_kl", mean(&|p| (p.1 - p.0).exp_m1() - (p.1 - p.0)));
    if let Some(correlation) = pearson(&pairs) {
        insert("training/rollout_actor_probs_pearson_corr", correlation);
    }
    metrics
}

/// Pearson's correlation of the two probabilities; `None` where one of them does not vary.
fn pearson(logprobs: &[(f64, f64)]) -> Option<f64> {
    let num = logprobs.len() as f64;
    let probabilities = || logprobs.iter().map(|(a, b)| (a.exp(), b.exp()));
    let (sum_a, sum_b) = probabilities().fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
    let (mean_a, mean_b) = (sum_a / num, sum_b / num);
    let (mut covariance, mut variance_a, mut variance_b) = (0.0, 0.0, 0.0);
    for (a, b) in probabilities() {
        covariance += (a - mean_a) * (b - mean_b);
        variance_a += (a - mean_a).powi(2);
        variance_b += (b - mean_b).powi(2);
    }
    let scale = (variance_a * variance_b).sqrt();
    (scale > 0.0).then(|| (covariance / scale).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logprobs_have_no_mismatch() {
        let metrics = mismatch_metrics(&[0.0, -1.0, -2.0], &[0.0, -1.0, -2.0], &[false, true, true]);
        assert_eq!(metrics["training/rollout_probs_diff_max"], 0.0);
        assert_eq!(metrics["rollout_corr/k3_kl"], 0.0);
        assert!((metrics["training/rollout_actor_probs_pearson_corr"] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn mismatch_is_measured_on_unmasked_tokens_alone() {
        let half = 0.5_f64.ln();
        let quarter = 0.25_f64.ln();
        let metrics = mismatch_metrics(&[-9.0, half], &[-1.0, quarter], &[false, true]);
        assert!((metrics["training/rollout_probs_diff_max"] - 0.25).abs() < 1e-12);
        assert!((metrics["rollout_corr/kl"] - 2.0_f64.ln()).abs() < 1e-12);
        // k3 at ratio 1/2: 1/2 - 1 - ln(1/2)
        assert!((metrics["rollout_corr/k3_kl"] - (2.0_f64.ln() - 0.5)).abs() < 1e-12);
        assert!(!metrics.contains_key("training/rollout_actor_probs_pearson_corr"));
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
