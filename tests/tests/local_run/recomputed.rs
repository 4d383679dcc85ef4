//! A step can be computed again from the files of its run alone: advantages, ratios, losses.
//!
//! The formulas here are independent of the product's code.

use serde_json::{Value, json};

use crate::job::{Place, tiny_with};

/// Recorded numbers are f32, while metrics are computed from f64.
const TOLERANCE: f64 = 1e-5;

/// One completion of a step, of which every token counts.
struct Completion {
    group: u64,
    reward: f64,
    advantages: Vec<f64>,
    /// Log-probs of the last update that read the completion.
    new: Vec<f64>,
    /// Log-probs before the first update.
    old: Vec<f64>,
    reference: Vec<f64>,
    rollout: Vec<f64>,
}

impl Completion {
    fn of(line: &Value) -> Self {
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().map_or(Vec::new(), |list| list.iter().map(|v| v.as_f64().unwrap()).collect())
        };
        let training = &line["training"];
        let (new, old) = (numbers(&training["actor_logprobs"]), numbers(&training["old_logprobs"]));
        let completion = Self {
            group: line["group"].as_u64().unwrap(),
            reward: line["reward"].as_f64().unwrap(),
            advantages: numbers(&training["advantages"]),
            old: if old.is_empty() { new.clone() } else { old },
            new,
            reference: numbers(&training["ref_logprobs"]),
            rollout: numbers(&line["rollout_logprobs"]),
        };
        let len = line["token_ids"].as_array().unwrap().len();
        assert!(len > 0 && line["num_tokens"] == len && training["num_draws"] == 1, "{line}");
        assert!(training.get("loss_mask").is_none(), "all tokens count: {line}");
        let lens =
            [&completion.advantages, &completion.new, &completion.old, &completion.rollout].map(Vec::len);
        assert_eq!(lens, [len; 4], "{line}");
        completion
    }

    /// (advantage, new, old) of each token.
    fn tokens(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let logprobs = self.new.iter().zip(&self.old);
        self.advantages.iter().zip(logprobs).map(|(advantage, (new, old))| (*advantage, *new, *old))
    }
}

/// The completions of a step of the training, and its metrics.
fn step(place: &Place, step: u64) -> (Vec<Completion>, Value) {
    let lines = place.completions();
    let of_step = lines.iter().filter(|line| line["step"] == step && line["held_out"] == false);
    let completions = of_step.map(|line| {
        assert_eq!(line["policy_version"], step - 1, "{line}");
        Completion::of(line)
    });
    let metrics = place.steps().into_iter().find(|line| line["step"] == step).unwrap();
    (completions.collect(), metrics)
}

/// GRPO: (R - mean) / (std + 1e-6) of the group, with the unbiased standard deviation.
fn check_advantages(completions: &[Completion]) {
    for completion in completions {
        let group: Vec<f64> =
            completions.iter().filter(|c| c.group == completion.group).map(|c| c.reward).collect();
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        let squares = group.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>();
        let std = (squares / (group.len() as f64 - 1.0)).sqrt();
        let expected = (completion.reward - mean) / (std + 1e-6);
        for advantage in &completion.advantages {
            assert!((advantage - expected).abs() < TOLERANCE, "{advantage} {expected}");
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[track_caller]
fn check(metrics: &Value, name: &str, computed: f64) {
    let logged = metrics[name].as_f64().unwrap();
    assert!((logged - computed).abs() < TOLERANCE, "{name}: logged {logged}, computed {computed}");
}

#[test]
fn a_step_of_one_update_is_recomputed_from_its_completions() {
    let place = Place::new();
    let manifest = tiny_with(json!({
        "tracking": { "completionsPerStep": 5 }, "training": { "steps": 2 },
        "algorithm": { "kl": { "placement": "Loss", "estimator": "K3", "coefficient": 0.1 } }
    }));
    place.train(&manifest).expect(0, &[]);
    for idx in 1..=2 {
        let (completions, metrics) = step(&place, idx);
        assert_eq!(completions.len(), 8, "five of two groups of four are two groups");
        check_advantages(&completions);
        check(&metrics, "critic/rewards/mean", mean(completions.iter().map(|c| c.reward)));
        let tokens = || completions.iter().flat_map(Completion::tokens);
        check(&metrics, "critic/advantages/mean", mean(tokens().map(|(advantage, ..)| advantage)));
        // All ratios are 1, and GRPO takes the mean over sequences of each sequence's mean over tokens.
        let of = |completion: &Completion| mean(completion.advantages.iter().map(|advantage| -advantage));
        check(&metrics, "actor/pg_loss", mean(completions.iter().map(of)));
        let k3 = |completion: &Completion| {
            let pairs = completion.new.iter().zip(&completion.reference);
            mean(pairs.map(|(new, reference)| (reference - new).exp() - 1.0 + new - reference))
        };
        check(&metrics, "actor/kl_loss", mean(completions.iter().map(k3)));
        let distances = completions.iter().flat_map(|c| c.rollout.iter().zip(&c.old).map(|(r, o)| r - o));
        check(&metrics, "rollout_corr/kl", mean(distances));
    }
}

#[test]
fn the_clipped_loss_of_several_updates_is_recomputed_from_their_completions() {
    let place = Place::new();
    let (low, high) = (0.02, 0.03);
    let manifest = tiny_with(json!({
        "tracking": { "completionsPerStep": 100000 },
        "training": { "steps": 1, "promptsPerStep": 4, "promptsPerUpdate": 1 },
        "algorithm": { "loss": { "aggregation": "TokenMean", "clipLow": low, "clipHigh": high } }
    }));
    place.train(&manifest).expect(0, &[]);
    let (completions, metrics) = step(&place, 1);
    assert_eq!(completions.len(), 16);
    check_advantages(&completions);
    let token = |(advantage, new, old): (f64, f64, f64)| {
        let ratio = f64::exp(new - old);
        let (free, held) = (-advantage * ratio, -advantage * ratio.clamp(1.0 - low, 1.0 + high));
        (free.max(held), f64::from(u8::from(held > free)))
    };
    // Each group is one update, and the first update starts with the old policy.
    let of_group =
        |group: u64| completions.iter().filter(move |c| c.group == group).flat_map(Completion::tokens);
    assert!(of_group(0).all(|(_, new, old)| (new - old).abs() < TOLERANCE));
    check(&metrics, "actor/pg_loss", mean((0..4).map(|group| mean(of_group(group).map(|t| token(t).0)))));
    let tokens = || (0..4).flat_map(of_group);
    check(&metrics, "actor/ppo_kl", mean(tokens().map(|(_, new, old)| old - new)));
    let clipped = mean(tokens().map(|t| token(t).1));
    check(&metrics, "actor/pg_clipfrac", clipped);
    assert!(clipped > 0.0, "a test of the clip needs ratios beyond it: {metrics}");
}

#[test]
fn all_samples_of_held_out_prompts_are_recorded_with_the_weights_that_drew_them() {
    let place = Place::new();
    let manifest = tiny_with(json!({
        "tracking": { "completionsPerStep": 100 },
        "rollout": { "heldOut": { "temperature": 1.0, "samplesPerPrompt": 3 } },
        "training": { "steps": 2, "evaluateEvery": 2 }
    }));
    place.train(&manifest).expect(0, &[]);
    let lines = place.completions();
    for (idx, metrics) in place.metrics().iter().enumerate().step_by(2) {
        let held_out: Vec<&Value> =
            lines.iter().filter(|line| line["held_out"] == true && line["step"] == idx).collect();
        assert_eq!(held_out.len(), 4 * 3, "four prompts, three samples each");
        assert!(held_out.iter().all(|line| line["policy_version"] == idx && line.get("training").is_none()));
        check(
            metrics,
            "val-core/reward/mean",
            mean(held_out.iter().map(|line| line["score"].as_f64().unwrap())),
        );
        for (at, line) in held_out.iter().enumerate() {
            assert_eq!((&line["group"], &line["sample"]), (&json!(at / 3), &json!(at % 3)));
            let lens = ["token_ids", "rollout_logprobs"].map(|name| line[name].as_array().unwrap().len());
            assert!(
                lens[0] > 0 && lens[0] == lens[1] && !line["prompt_token_ids"].as_array().unwrap().is_empty()
            );
        }
    }
}
