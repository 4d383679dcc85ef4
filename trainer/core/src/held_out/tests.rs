//! Held-out metrics, computed by hand and by verl's own functions for the same samples.

use std::sync::Arc;

use super::*;
use crate::fixtures::{reward, rollout};
use crate::types::{Prompt, RewardStatus, Rollout};

/// A group whose samples have these scores and answers; a sample without a score timed out.
fn group(data_source: &str, samples: &[(Option<f64>, Option<&str>)]) -> RolloutGroup {
    let prompt = Prompt { data_source: data_source.into(), ..Prompt::from_tokens(0, vec![1]) };
    let prompt = Arc::new(prompt);
    let sample = |(sample_idx, (score, answer)): (usize, &(Option<f64>, Option<&str>))| {
        let status = if score.is_some() { RewardStatus::Ok } else { RewardStatus::Timeout };
        let answer = answer.map(str::to_owned);
        let reward = Reward { value: 0.0, answer, ..reward(score.unwrap_or(9.0), status) };
        let tokens = vec![1; sample_idx + 1];
        Rollout { sample_idx: sample_idx as u32, ..rollout(&prompt, &tokens, reward) }
    };
    RolloutGroup { rollouts: samples.iter().enumerate().map(sample).collect(), prompt: Arc::clone(&prompt) }
}

fn scored(scores: &[f64]) -> Vec<(Option<f64>, Option<&'static str>)> {
    scores.iter().map(|score| (Some(*score), None)).collect()
}

#[track_caller]
fn assert_close(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "{got} is not {expected}");
}

#[test]
fn one_sample_has_a_mean_and_nothing_else() {
    let groups = [group("a", &scored(&[1.0])), group("a", &scored(&[0.0])), group("b", &scored(&[0.5]))];
    let metrics = held_out_metrics(&groups, 1);
    let expected = [
        ("val-aux/response_length/mean", 1.0),
        ("val-core/a/reward/mean@1", 0.5),
        ("val-core/b/reward/mean@1", 0.5),
        ("val-core/reward/mean", 0.5),
    ];
    assert_eq!(metrics, expected.map(|(name, value)| (name.to_owned(), value)).into());
}

#[test]
fn the_sources_with_the_most_prompts_have_metrics_and_all_sources_count_in_the_mean() {
    let (large, long) = ("zz", "x".repeat(MAX_SOURCE_BYTES + 1));
    let names: Vec<String> = (0..300).map(|idx| format!("source-{idx:03}")).collect();
    let mut groups: Vec<_> = names.iter().map(|name| group(name, &scored(&[0.0]))).collect();
    groups.extend([group(large, &scored(&[1.0])), group(large, &scored(&[1.0]))]);
    groups.extend([group(&long, &scored(&[0.0])), group(&long, &scored(&[0.0]))]);
    let metrics = held_out_metrics(&groups, 1);
    assert_close(metrics["val-core/reward/mean"], 2.0 / 304.0, 1e-15);
    let of_sources = metrics.keys().filter(|name| name.ends_with("/reward/mean@1"));
    assert_eq!(of_sources.count(), MAX_SOURCES);
    assert!(metrics.keys().all(|name| name.len() < MAX_SOURCE_BYTES));
    assert_close(metrics["val-core/zz/reward/mean@1"], 1.0, 0.0);
    assert!(metrics.contains_key("val-core/source-098/reward/mean@1"));
}

#[test]
fn best_and_worst_of_two_are_those_of_all_pairs() {
    // Of the four equally likely pairs of 0 and 1, three hold a 1 and three a 0: both extremes vary by
    // sqrt(3) / 4.
    let metrics = held_out_metrics(&[group("a", &scored(&[1.0, 0.0])), group("a", &scored(&[1.0, 1.0]))], 2);
    assert_close(metrics["val-core/a/reward/mean@2"], 0.75, 1e-15);
    assert_close(metrics["val-aux/a/reward/std@2"], 0.25, 1e-15);
    assert_close(metrics["val-core/a/reward/best@2/mean"], 0.875, 1e-15);
    assert_close(metrics["val-core/a/reward/best@2/std"], 3f64.sqrt() / 8.0, 1e-15);
    assert_close(metrics["val-aux/a/reward/worst@2/mean"], 0.625, 1e-15);
    assert!(!metrics.keys().any(|name| name.contains("maj@")), "nothing was there to vote with: {metrics:?}");
}

#[test]
fn only_metrics_over_all_samples_are_core_metrics() {
    let metrics = held_out_metrics(&[group("a", &scored(&[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]))], 6);
    let has = |name: &str| metrics.contains_key(name);
    assert!(has("val-aux/a/reward/best@2/mean") && has("val-aux/a/reward/best@4/std"));
    assert!(has("val-core/a/reward/best@6/mean") && has("val-aux/a/reward/worst@6/mean"));
    assert!(!has("val-aux/a/reward/best@8/mean") && !has("val-core/a/reward/best@2/mean"));
}

#[test]
fn samples_without_a_trusted_reward_count_for_nothing() {
    let groups = [group("a", &[(Some(1.0), None), (None, None)]), group("a", &[(None, None), (None, None)])];
    let metrics = held_out_metrics(&groups, 2);
    assert_eq!(metrics["val-core/a/reward/mean@2"], 1.0);
    assert_eq!(metrics["val-aux/a/reward/worst@2/mean"], 1.0);
    assert_eq!(
        held_out_metrics(&groups[1..], 2).keys().collect::<Vec<_>>(),
        ["val-aux/response_length/mean"]
    );
}

#[test]
fn the_majority_has_the_reward_of_its_answer() {
    let unanimous = [(Some(1.0), Some("7")), (Some(1.0), Some("7"))];
    let metrics = held_out_metrics(&[group("a", &unanimous)], 2);
    assert_eq!(metrics["val-core/a/reward/maj@2/mean"], 1.0);
    assert_eq!(metrics["val-core/a/reward/maj@2/std"], 0.0);
    // Two draws agree or the first wins: either way the majority is the first drawn, right half of the time.
    // The standard error of 1000 draws is 0.016.
    let divided = [(Some(1.0), Some("7")), (Some(0.0), None)];
    let metrics = held_out_metrics(&[group("a", &divided)], 2);
    assert_close(metrics["val-core/a/reward/maj@2/mean"], 0.5, 0.05);
    // Many wrong answers that differ do not outvote a few right ones that agree.
    let mut scattered: Vec<_> = ["1", "2", "3", "4", "5"].map(|answer| (Some(0.0), Some(answer))).to_vec();
    scattered.extend([(Some(1.0), Some("7")); 11]);
    let metrics = held_out_metrics(&[group("a", &scattered)], 16);
    assert!(metrics["val-core/a/reward/maj@16/mean"] > 0.999, "{metrics:?}");
}

#[test]
fn the_same_samples_give_what_verl_gives() {
    let scores = [0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 0.25, 0.0];
    let answers = [Some("7"), Some("8"), Some("7"), Some("6"), Some("8"), None, Some("9"), Some("7")];
    let samples: Vec<_> = scores.into_iter().map(Some).zip(answers).collect();
    let metrics = held_out_metrics(&[group("a", &samples)], 8);
    // verl's means over 1000 draws for best and worst, over 200 000 for majorities, whose standard deviation
    // is 0.42: five standard errors of the 1000 draws on either side are 0.066.
    let expected = [
        ("val-aux/a/reward/best@2/mean", 0.557),
        ("val-aux/a/reward/worst@2/mean", 0.12825),
        ("val-aux/a/reward/best@4/mean", 0.79175),
        ("val-core/a/reward/best@8/mean", 0.945),
        ("val-core/a/reward/best@8/std", 0.17205),
        ("val-aux/a/reward/worst@8/mean", 0.00225),
        ("val-aux/a/reward/maj@2/mean", 0.34423),
        ("val-aux/a/reward/maj@4/mean", 0.32537),
        ("val-core/a/reward/maj@8/mean", 0.29947),
        ("val-core/a/reward/maj@8/std", 0.42784),
    ];
    for (name, value) in expected {
        assert_close(metrics[name], value, 0.066);
    }
}
