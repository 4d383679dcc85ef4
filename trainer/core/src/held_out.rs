//! Validation metrics of held-out samples: the mean reward, and the expected rewards of the best, the worst
//! and the majority of several samples, under the names of verl (`process_validation_metrics` in
//! `ppo/metric_utils.py`).
//!
//! Of a prompt's `N` samples, `n` are drawn with replacement, for `n` of 2, 4, 8 and so on up to `N`. verl
//! estimates the best and the worst from 1000 draws; this module uses the closed forms that these draws
//! approach. A majority has no closed form and is drawn 1000 times, as in verl, from fixed seeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::metrics::Metrics;
use crate::sampling::{derive_seed, draw};
use crate::types::{Reward, RolloutGroup};

const NUM_DRAWS: usize = 1000;
const SEED: u64 = 42;
/// Maximum number of data sources with metrics of their own. Each is a plot of the report and of trackers,
/// and a data set may name one in each row.
const MAX_SOURCES: usize = 100;
/// Longest name of such a source in bytes.
const MAX_SOURCE_BYTES: usize = 256;

/// Mean and population standard deviation.
type Moments = (f64, f64);

/// Metrics of held-out prompts with `num_samples` samples each: `val-core/reward/mean`,
/// `val-core/<source>/reward/..`, `val-aux/<source>/reward/..` and `val-aux/response_length/mean`.
///
/// Samples whose reward status is no verdict are left out, and so are prompts without any other sample. Of
/// many sources, those with the most prompts have metrics of their own.
/// Majorities are reported if a reward function extracts answers to vote with.
pub fn held_out_metrics(groups: &[RolloutGroup], num_samples: u32) -> Metrics {
    let mut by_source: BTreeMap<&str, Vec<Vec<&Reward>>> = BTreeMap::new();
    for group in groups {
        let rewards = group.rollouts.iter().map(|rollout| &rollout.reward);
        let trusted: Vec<_> = rewards.filter(|reward| reward.status.is_verdict()).collect();
        if !trusted.is_empty() {
            by_source.entry(&group.prompt.data_source).or_default().push(trusted);
        }
    }
    let mut metrics = Metrics::new();
    insert_mean(
        &mut metrics,
        "val-core/reward/mean",
        by_source.values().flatten().flatten().map(|r| r.score),
    );
    let reported = reported_sources(&by_source);
    for (source, prompts) in by_source.iter().filter(|(source, _)| reported.contains(*source)) {
        for (name, value) in source_metrics(prompts, num_samples) {
            let room = if is_core(&name, num_samples) { "val-core" } else { "val-aux" };
            metrics.insert(format!("{room}/{source}/reward/{name}"), value);
        }
    }
    let rollouts = groups.iter().flat_map(|group| &group.rollouts);
    let lens = rollouts.map(|rollout| rollout.completion.tokens.len() as f64);
    insert_mean(&mut metrics, "val-aux/response_length/mean", lens);
    metrics
}

/// Returns the sources with metrics of their own: those with the most prompts, of equal ones the first by
/// name.
fn reported_sources<'a>(by_source: &BTreeMap<&'a str, Vec<Vec<&Reward>>>) -> BTreeSet<&'a str> {
    let sources = by_source.iter().filter(|(source, _)| source.len() <= MAX_SOURCE_BYTES);
    let mut sources: Vec<_> = sources.map(|(source, prompts)| (Reverse(prompts.len()), *source)).collect();
    sources.sort_unstable();
    sources.into_iter().take(MAX_SOURCES).map(|(_, source)| source).collect()
}

/// Whether verl counts a metric among the core metrics: those over all samples.
fn is_core(name: &str, num_samples: u32) -> bool {
    let shown = ["mean@", "best@", "maj@"].iter().find_map(|prefix| name.strip_prefix(prefix));
    shown.is_some_and(|rest| rest.split('/').next() == Some(num_samples.to_string().as_str()))
}

/// Computes the metrics of one data source, each a mean over prompts.
fn source_metrics(prompts: &[Vec<&Reward>], num_samples: u32) -> Vec<(String, f64)> {
    let scores: Vec<Vec<f64>> =
        prompts.iter().map(|rewards| rewards.iter().map(|r| r.score).collect()).collect();
    let (mean, std) = mean_moments(scores.iter().map(|scores| moments(scores)));
    let mut metrics = vec![(format!("mean@{num_samples}"), mean)];
    if num_samples < 2 {
        return metrics;
    }
    metrics.push((format!("std@{num_samples}"), std));
    let has_answers = prompts.iter().flatten().any(|reward| reward.answer.is_some());
    for num_drawn in numbers_drawn(num_samples) {
        let mut push = |name: &str, (mean, std): Moments| {
            metrics.push((format!("{name}@{num_drawn}/mean"), mean));
            metrics.push((format!("{name}@{num_drawn}/std"), std));
        };
        push("best", mean_moments(scores.iter().map(|scores| best(scores, num_drawn))));
        push("worst", mean_moments(scores.iter().map(|scores| worst(scores, num_drawn))));
        if has_answers {
            push("maj", mean_moments(prompts.iter().map(|rewards| majority(rewards, num_drawn))));
        }
    }
    metrics
}

/// Returns 2, 4, 8 and so on below `num_samples`, then `num_samples` itself.
fn numbers_drawn(num_samples: u32) -> impl Iterator<Item = u32> {
    let doubled = std::iter::successors(Some(2u32), |num| num.checked_mul(2));
    doubled.take_while(move |num| *num < num_samples).chain([num_samples])
}

/// Returns the moments of the largest of `num_drawn` scores drawn with replacement.
fn best(scores: &[f64], num_drawn: u32) -> Moments {
    let mut ascending = scores.to_vec();
    ascending.sort_by(f64::total_cmp);
    last_in_order(&ascending, num_drawn)
}

/// Returns the moments of the smallest of `num_drawn` scores drawn with replacement.
fn worst(scores: &[f64], num_drawn: u32) -> Moments {
    let mut descending = scores.to_vec();
    descending.sort_by(|left, right| right.total_cmp(left));
    last_in_order(&descending, num_drawn)
}

/// Returns the moments of the last, in the given order, of `num_drawn` scores drawn with replacement. All
/// draws fall among the first `i` of `N` with probability `(i / N)^n`; the last of them is the `i`-th with
/// the difference of two such probabilities.
fn last_in_order(ordered: &[f64], num_drawn: u32) -> Moments {
    let among_first = |num: usize| (num as f64 / ordered.len() as f64).powf(f64::from(num_drawn));
    let weighted =
        || ordered.iter().enumerate().map(|(idx, score)| (score, among_first(idx + 1) - among_first(idx)));
    let mean: f64 = weighted().map(|(score, weight)| score * weight).sum();
    let variance: f64 = weighted().map(|(score, weight)| (score - mean).powi(2) * weight).sum();
    (mean, variance.sqrt())
}

/// Estimates the moments of the score of the most frequent answer among `num_drawn` drawn samples. Among
/// equally frequent answers the first drawn wins, and its first drawn sample gives the score. Having no
/// answer counts as an answer.
fn majority(rewards: &[&Reward], num_drawn: u32) -> Moments {
    let first_alike =
        |reward: &&Reward| rewards.iter().position(|other| other.answer == reward.answer).unwrap_or(0);
    let ballots: Vec<usize> = rewards.iter().map(first_alike).collect();
    let seed = derive_seed(&[SEED, u64::from(num_drawn), rewards.len() as u64]);
    let num_drawn = num_drawn as usize;
    let mut votes = vec![0u32; rewards.len()];
    let mut drawn = vec![0usize; num_drawn];
    let scores: Vec<f64> = (0..NUM_DRAWS)
        .map(|draw_idx| {
            votes.fill(0);
            for (place, sample_idx) in drawn.iter_mut().enumerate() {
                let uniform = draw(seed, (draw_idx * num_drawn + place) as u64);
                *sample_idx = (uniform * rewards.len() as f64) as usize;
                votes[ballots[*sample_idx]] += 1;
            }
            let most = votes.iter().max();
            let winner = drawn.iter().find(|sample_idx| Some(&votes[ballots[**sample_idx]]) == most);
            winner.map_or(0.0, |sample_idx| rewards[*sample_idx].score)
        })
        .collect();
    moments(&scores)
}

fn moments(values: &[f64]) -> Moments {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

fn mean_moments(of_prompts: impl Iterator<Item = Moments>) -> Moments {
    let (means, stds): (Vec<f64>, Vec<f64>) = of_prompts.unzip();
    (moments(&means).0, moments(&stds).0)
}

fn insert_mean(metrics: &mut Metrics, name: &str, values: impl Iterator<Item = f64>) {
    let values: Vec<f64> = values.collect();
    if !values.is_empty() {
        metrics.insert(name.to_owned(), moments(&values).0);
    }
}

#[cfg(test)]
mod tests;
