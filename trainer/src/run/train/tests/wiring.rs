//! Every name that a manifest can choose reaches its own arithmetic. Each test drives all choices of a field
//! from the manifest to results, and compares them with results that the test computes. No two choices have
//! equal results, so a test fails if any two arms between the manifest and the arithmetic are swapped.

mod adapter;

use std::fmt::Debug;

use rlt_api::resolved::{Kl, PolicyGradient, Preference, ResolvedSpec};
use rlt_core::batch::{Batch, Demonstration};
use rlt_core::loss::{Denominators, LossInputs, LossOutputs};
use rlt_core::preference::{PreferenceDenominators, PreferenceInputs};
use rlt_core::reweighting::resample;
use rlt_core::rows::Rows;
use rlt_core::schedule::{Decay, Schedule};
use rlt_core::types::{RewardStatus, TokenId};
use rlt_core::whiten::masked_whiten;
use rlt_data::seeds::SeedUse;
use rlt_tests::{choices, tiny_job_with};
use serde_json::{Value, json};

use super::*;
use crate::recipes::{Estimator, PolicyFiltration, RolloutCorrection};
use crate::roles::objective::{objective, preference_objective};
use crate::roles::reference::kl_controller;

/// Returns the tiny job with `changes`, with every default filled in.
fn resolved(changes: Value) -> ResolvedSpec {
    rlt_api::validate(&tiny_job_with(changes).to_string()).unwrap().spec().clone()
}

fn policy_gradient(algorithm: Value) -> PolicyGradient {
    resolved(json!({ "algorithm": algorithm })).algorithm.policy_gradient.unwrap()
}

/// Creates the roles of the tiny job with `changes`.
fn roles_of(changes: Value) -> Roles {
    let root = tempfile::tempdir().unwrap();
    let (_, roles, _) = set_up(&tiny_job_with(changes).to_string(), &root.path().join("run"));
    roles
}

/// Creates a batch of completions of these lengths, each in its own rollout group; advantages are 1.
fn batch(lens: &[usize]) -> Batch {
    let demonstration = |len: &usize| Demonstration {
        tokens: (0..2 + len).map(|at| (at % 10) as TokenId).collect(),
        loss_mask: (0..2 + len).map(|at| at >= 2).collect(),
        images: Vec::new(),
    };
    Batch::from_demonstrations(&lens.iter().map(demonstration).collect::<Vec<_>>())
}

/// Checks that `table` has a row for each choice of `field`, and that no two rows have equal values.
#[track_caller]
fn assert_complete<T: PartialEq + Debug>(field: &str, table: &[(&str, T)]) {
    let mut names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    let mut choices = choices(field);
    names.sort_unstable();
    choices.sort_unstable();
    assert_eq!(names, choices, "{field}");
    for (idx, (name, numbers)) in table.iter().enumerate() {
        for (other, other_numbers) in &table[..idx] {
            assert_ne!(numbers, other_numbers, "{field}: {name} and {other}");
        }
    }
}

#[track_caller]
fn assert_close(got: &[f64], expected: &[f64], name: impl Debug) {
    let is_close = got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(is_close, "{name:?}: {got:?}, expected {expected:?}");
}

#[test]
fn every_kind_of_schedule_has_its_curve() {
    let kinds = [("Constant", Decay::Constant), ("Cosine", Decay::Cosine), ("Linear", Decay::Linear)];
    let min_ratio = |kind: &str| if kind == "Constant" { 0.0 } else { 0.2 };
    let table = kinds.map(|(kind, decay)| {
        let min_ratio = min_ratio(kind);
        let schedule =
            Schedule { learning_rate: 0.5, decay, warmup_steps: 2, first_step: 0, num_steps: 9, min_ratio };
        (kind, (0..9).map(|step_idx| schedule.at(step_idx)).collect::<Vec<f64>>())
    });
    assert_complete("spec.training.schedule.kind", &table);
    for (kind, rates) in &table[1..] {
        assert!(rates[8] > 0.1, "{kind} reaches its minimum one step after the last: {rates:?}");
    }
    for (kind, expected) in &table {
        let schedule = json!({ "kind": kind, "warmupSteps": 2, "minRatio": min_ratio(kind) });
        let optimizer = json!({ "learningRate": 0.5 });
        let training = json!({ "steps": 9, "optimizer": optimizer, "schedule": schedule });
        let schedule = roles_of(json!({ "training": training })).actor.schedule;
        assert_close(&(0..9).map(|step_idx| schedule.at(step_idx)).collect::<Vec<_>>(), expected, kind);
    }
}

/// Verl's scheduler also begins with the actor's first update.
#[test]
fn the_schedule_begins_after_the_critic_has_warmed_up() {
    let rates = |kind: &str, steps: u64, first: u64| {
        let critic = if kind == "PPO" { json!({ "warmupSteps": first }) } else { Value::Null };
        let training = json!({
            "steps": steps, "optimizer": { "learningRate": 0.5 },
            "schedule": { "kind": "Linear", "warmupSteps": 2 },
        });
        let algorithm = json!({ "kind": kind, "critic": critic });
        let schedule = roles_of(json!({ "algorithm": algorithm, "training": training })).actor.schedule;
        (first..steps).map(|step_idx| schedule.at(step_idx)).collect::<Vec<_>>()
    };
    assert_close(&rates("PPO", 12, 4), &rates("GRPO", 8, 0), "after the critic's warm-up");
}

#[test]
fn a_cold_start_has_its_own_warm_up_and_rate_and_leaves_the_schedule_to_the_training() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("run");
    let job = tiny_job_with(json!({
        "algorithm": { "coldStart": { "steps": 20, "batchSize": 2, "learningRate": 0.003 } },
        "training": {
            "steps": 3, "optimizer": { "learningRate": 0.001 },
            "schedule": { "kind": "Linear", "warmupSteps": 1, "minRatio": 0.5 },
        },
        "checkpoint": { "everySteps": 0 },
    }));
    let (mut run, mut roles, mut data) = set_up(&job.to_string(), &root);
    assert_eq!(train(&mut run, &mut roles, &mut data).unwrap(), Outcome::Complete);
    let metrics = std::fs::read_to_string(root.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rates_of = |phase: i32| -> Vec<f64> {
        let of_phase = lines.iter().filter(|line| line["training/phase"] == phase);
        of_phase.filter_map(|line| line["actor/lr"].as_f64()).collect()
    };
    let warm_up = [0.001, 0.002];
    assert_close(&rates_of(0), &[&warm_up[..], &[0.003; 18]].concat(), "cold start");
    let schedule = Schedule {
        learning_rate: 0.001,
        decay: Decay::Linear,
        warmup_steps: 1,
        first_step: 0,
        num_steps: 3,
        min_ratio: 0.5,
    };
    assert_close(&rates_of(1), &[0, 1, 2].map(|step_idx| schedule.at(step_idx)), "training");
}

/// Log-ratios of actor to rollout policy, by sequence. All rejection rules give different results for them.
const LOG_RATIOS: [[f64; 3]; 6] = [
    [1.5, 0.0, 0.0],
    [1.6, 1.6, 0.0],
    [1.8, 0.0, 0.0],
    [-2.0, -2.0, 0.0],
    [0.5, 0.1, -0.1],
    [-2.0, 0.0, 0.0],
];

/// Creates a batch with [`LOG_RATIOS`] and applies the correction that a manifest requests.
fn corrected(roles: &Roles, correction: &Value) -> Batch {
    let algorithm = policy_gradient(json!({ "importanceCorrection": correction }));
    let log_ratios = LOG_RATIOS.concat();
    let mut batch = batch(&LOG_RATIOS.map(|row| row.len()));
    batch.rollout_logprobs = vec![-3.0; log_ratios.len()];
    batch.old_logprobs = Some(log_ratios.iter().map(|log_ratio| log_ratio - 3.0).collect());
    RolloutCorrection::of(&algorithm).apply(roles, batch).unwrap()
}

/// Returns which tokens of a sequence the named rule keeps, according to its documentation.
fn kept_tokens(statistic: &str, log_ratios: [f64; 3], (lower, upper): (f64, f64)) -> [bool; 3] {
    let (level, divergence) = statistic.split_at(statistic.len() - 2);
    let values = log_ratios.map(|x| match divergence {
        "K1" => -x,
        "K2" => x * x / 2.0,
        _ => x.exp() - 1.0 - x,
    });
    let allows = |value: f64| match divergence {
        "K1" => (lower..=upper).contains(&value.exp()),
        _ => value <= upper,
    };
    match level {
        "Token" => values.map(allows),
        "SequenceSum" => [allows(values.iter().sum()); 3],
        "SequenceMean" => [allows(values.iter().sum::<f64>() / 3.0); 3],
        _ => [allows(values.into_iter().fold(f64::MIN, f64::max)); 3],
    }
}

#[test]
fn every_rejection_statistic_rejects_its_own_tokens() {
    const STATISTICS: [&str; 11] = [
        "TokenK1",
        "TokenK2",
        "TokenK3",
        "SequenceSumK1",
        "SequenceSumK2",
        "SequenceSumK3",
        "SequenceMeanK1",
        "SequenceMeanK2",
        "SequenceMeanK3",
        "SequenceMaxK2",
        "SequenceMaxK3",
    ];
    let roles = roles_of(json!({}));
    let bounds = (0.5, 1.5);
    let table = STATISTICS.map(|name| (name, LOG_RATIOS.map(|row| kept_tokens(name, row, bounds)).concat()));
    assert_complete("spec.algorithm.importanceCorrection.rejection.statistic", &table);
    for (statistic, expected) in &table {
        let mut rejection = json!({ "statistic": statistic, "upper": bounds.1 });
        // Only the rules on ratios, named `K1`, have a lower bound.
        if statistic.ends_with("K1") {
            rejection["lower"] = bounds.0.into();
        }
        let got = corrected(&roles, &json!({ "rejection": rejection }));
        assert_eq!(got.rows.mask(), expected, "{statistic}");
    }
    let without_lower = json!({ "rejection": { "statistic": "TokenK1", "upper": bounds.1 } });
    let expected = LOG_RATIOS.map(|row| kept_tokens("TokenK1", row, (1.0 / bounds.1, bounds.1))).concat();
    assert_ne!(expected, table[0].1);
    assert_eq!(corrected(&roles, &without_lower).rows.mask(), expected);
}

#[test]
fn every_level_of_importance_weights_has_its_ratios_and_bounds() {
    let roles = roles_of(json!({}));
    for (lower, normalize) in [(None, false), (Some(0.6), false), (None, true), (Some(0.6), true)] {
        let bounded = |log_ratio: f64| match (log_ratio.exp(), lower) {
            (ratio, None) => ratio.min(3.0),
            (ratio, Some(lower)) if (lower..=3.0).contains(&ratio) => ratio,
            _ => 0.0,
        };
        let normalized = |weights: Vec<f64>| {
            let mean = weights.iter().sum::<f64>() / weights.len() as f64;
            weights.iter().map(|weight| if normalize { weight / mean } else { *weight }).collect::<Vec<_>>()
        };
        let of_sequence = |row: [f64; 3]| [bounded(row.iter().sum()); 3];
        let table = [
            ("Token", normalized(LOG_RATIOS.map(|row| row.map(bounded)).concat())),
            ("Sequence", normalized(LOG_RATIOS.map(of_sequence).concat())),
        ];
        assert_complete("spec.algorithm.importanceCorrection.level", &table);
        for (level, expected) in &table {
            let mut correction = json!({ "level": level, "threshold": 3.0, "normalize": normalize });
            if let Some(lower) = lower {
                correction["lowerThreshold"] = lower.into();
            }
            let got = corrected(&roles, &correction).importance_weights.unwrap();
            assert_close(&got, expected, (level, lower, normalize));
        }
    }
}

#[test]
fn every_reweighting_method_draws_by_its_own_weights() {
    let roles = roles_of(json!({}));
    let rewards: Vec<f64> = (0..24).map(|idx| 2.0 * (0.7 * f64::from(idx)).sin()).collect();
    let seed = roles.context().seed(SeedUse::Reweighting, &[0]);
    let drawn = |weight: &dyn Fn(f64) -> f64| {
        let weights: Vec<f64> = rewards.iter().map(|reward| weight(*reward) + 1e-8).collect();
        let mut row_idxs = resample(&weights, seed);
        row_idxs.sort_unstable();
        row_idxs.into_iter().map(|row_idx| rewards[row_idx]).collect::<Vec<_>>()
    };
    let best = rewards.iter().copied().fold(f64::MIN, f64::max);
    let worst = rewards.iter().copied().fold(f64::MAX, f64::min);
    let table = [
        ("Pow", drawn(&|reward| reward * reward)),
        ("MaxMin", drawn(&|reward| if reward == best || reward == worst { 1.0 } else { 0.0 })),
        ("MaxRandom", drawn(&|reward| if reward == best { 0.4 } else { 0.1 })),
    ];
    assert_complete("spec.algorithm.reweighting.method", &table);
    let got = |reweighting: Value| {
        let mut batch = batch(&[1; 24]);
        batch.rewards.clone_from(&rewards);
        let algorithm = policy_gradient(json!({ "reweighting": reweighting }));
        PolicyFiltration::of(&algorithm).draw(&roles, batch).rewards
    };
    for (method, expected) in &table {
        assert_eq!(got(json!({ "method": method })), *expected, "{method}");
    }
    let by_power = drawn(&|reward| reward.abs().powi(9));
    assert_ne!(by_power, table[0].1);
    assert_eq!(got(json!({ "method": "Pow", "power": 9.0 })), by_power);
}

const LOGPROBS: [f64; 5] = [-1.0, -2.0, -0.5, -3.0, -1.5];
/// Log-ratios of actor to reference.
const REFERENCE_RATIOS: [f64; 5] = [0.5, -0.25, 1.0, -1.0, 0.125];
const ENTROPIES: [f64; 5] = [0.3, 0.7, 1.1, 0.2, 0.5];

/// Computes loss and derivatives of an on-policy update with advantages from -1 to -5, in rows of three and
/// two tokens with rewards 1 and 0.5.
fn loss_of(algorithm: &PolicyGradient) -> LossOutputs {
    let rows = Rows::unmasked([3, 2]);
    let objective = objective(algorithm, kl_controller(&algorithm.kl).coefficient());
    let positive_weights = objective.positive_weights(&rows, &[1.0, 0.5]).unwrap();
    let ref_logprobs: Vec<f64> = LOGPROBS.iter().zip(REFERENCE_RATIOS).map(|(own, x)| own - x).collect();
    let inputs = LossInputs {
        ref_logprobs: Some(&ref_logprobs),
        positive_weights: positive_weights.as_deref(),
        ..LossInputs::new(&rows, &[-1.0, -2.0, -3.0, -4.0, -5.0])
    };
    let prepared = objective.prepare(inputs, &Denominators::of(&rows)).unwrap();
    prepared.evaluate(0..5, &LOGPROBS, &ENTROPIES).unwrap()
}

/// Computes [`loss_of`] with these settings of the loss, summed over tokens and without a KL term.
fn loss_with(loss: Value) -> LossOutputs {
    let mut algorithm = json!({ "kl": { "placement": "None" }, "loss": { "aggregation": "TokenSum" } });
    rlt_tests::merge(&mut algorithm["loss"], loss);
    loss_of(&policy_gradient(algorithm))
}

#[test]
fn every_aggregation_sums_the_losses_of_tokens_as_named() {
    let table = [
        ("TokenMean", 3.0),
        ("TokenSum", 15.0),
        ("SequenceMeanTokenMean", 3.25),
        ("SequenceMeanTokenSum", 7.5),
        ("SequenceMeanTokenSumNorm", 1.875),
    ];
    assert_complete("spec.algorithm.loss.aggregation", &table);
    for (aggregation, expected) in table {
        let has_constant = aggregation == "SequenceMeanTokenSumNorm";
        let normalization_tokens = if has_constant { json!(4) } else { Value::Null };
        let loss = json!({ "aggregation": aggregation, "normalizationTokens": normalization_tokens });
        assert_close(&[loss_with(loss).loss], &[expected], aggregation);
    }
}

#[test]
fn a_positive_entropy_coefficient_rewards_entropy() {
    let without = loss_with(json!({}));
    assert_close(&without.dentropies, &[0.0; 5], "no coefficient");
    for coefficient in [0.25, -0.5] {
        let with = loss_with(json!({ "entropyCoefficient": coefficient }));
        let entropy: f64 = ENTROPIES.iter().sum();
        assert_close(&[with.loss - without.loss], &[-coefficient * entropy], coefficient);
        assert_close(&with.dentropies, &[-coefficient; 5], coefficient);
        assert_eq!(with.dlogprobs, without.dlogprobs);
    }
}

#[test]
fn completions_above_the_positive_threshold_are_positive_examples() {
    let without = loss_with(json!({ "positiveThreshold": null }));
    // The rewards are 1 for the first three tokens, and 0.5 for the others.
    for (threshold, num_positive) in [(None, 5), (Some(0.5), 3), (Some(0.75), 3), (Some(1.0), 0)] {
        let with = loss_with(json!({ "positiveCoefficient": 0.4, "positiveThreshold": threshold }));
        let share = 0.4 / f64::from(num_positive.max(1));
        let slopes: Vec<f64> = (0..5).map(|token| if token < num_positive { -share } else { 0.0 }).collect();
        let expected: f64 = slopes.iter().zip(LOGPROBS).map(|(slope, logprob)| slope * logprob).sum();
        assert_close(&[with.loss - without.loss], &[expected], threshold);
        let got: Vec<f64> = with.dlogprobs.iter().zip(&without.dlogprobs).map(|(a, b)| a - b).collect();
        assert_close(&got, &slopes, threshold);
    }
}

/// Computes value and derivative of the named KL estimator at the log-ratio `d`, according to its
/// documentation.
fn kl_of(estimator: &str, d: f64) -> (f64, f64) {
    let k3 = (-d).exp() - 1.0 + d;
    match estimator {
        "K1" => (d, 1.0),
        "K1StraightThrough" => (d, d),
        "Abs" => (d.abs(), d.signum()),
        "K2" => (d * d / 2.0, d),
        "K3" => (k3, 1.0 - (-d).exp()),
        _ => (k3, d),
    }
}

#[test]
fn every_kl_estimator_has_its_value_and_slope_in_the_loss() {
    let estimators = ["K1", "K1StraightThrough", "Abs", "K2", "K3", "K3StraightThrough"];
    let table = estimators.map(|name| {
        let (values, slopes): (Vec<f64>, Vec<f64>) = REFERENCE_RATIOS.iter().map(|d| kl_of(name, *d)).unzip();
        (name, (values.iter().sum::<f64>(), slopes))
    });
    assert_complete("spec.algorithm.kl.estimator", &table);
    let without = loss_with(json!({}));
    for (estimator, (value, slopes)) in &table {
        let kl = json!({ "placement": "Loss", "estimator": estimator, "coefficient": 0.5 });
        let loss = json!({ "aggregation": "TokenSum" });
        let with = loss_of(&policy_gradient(json!({ "kl": kl, "loss": loss })));
        assert_close(&[with.loss - without.loss], &[0.5 * value], estimator);
        let got: Vec<f64> =
            with.dlogprobs.iter().zip(&without.dlogprobs).map(|(a, b)| 2.0 * (a - b)).collect();
        assert_close(&got, slopes, estimator);
    }
}

#[test]
fn every_kl_placement_adds_the_divergence_to_the_loss_or_takes_it_from_rewards() {
    let k2: Vec<f64> = REFERENCE_RATIOS.iter().map(|d| d * d / 2.0).collect();
    let penalty = k2.iter().map(|value| -0.5 * value).collect::<Vec<_>>();
    // Expected divergence in the loss, and in the rewards of tokens.
    let table = [
        ("None", (0.0, vec![0.0; 5])),
        ("Loss", (0.5 * k2.iter().sum::<f64>(), vec![0.0; 5])),
        ("Reward", (0.0, penalty)),
    ];
    assert_complete("spec.algorithm.kl.placement", &table);
    let without = loss_with(json!({}));
    for (placement, (in_loss, in_rewards)) in &table {
        let mut kl = json!({ "placement": placement });
        if *placement != "None" {
            rlt_tests::merge(&mut kl, json!({ "estimator": "K2", "coefficient": 0.5 }));
        }
        let algorithm = json!({ "kl": kl, "loss": { "aggregation": "TokenSum" } });
        let mut roles = roles_of(json!({ "algorithm": algorithm }));
        let mut batch = batch(&[3, 2]);
        batch.old_logprobs = Some(LOGPROBS.to_vec());
        batch.ref_logprobs = Some(LOGPROBS.iter().zip(REFERENCE_RATIOS).map(|(own, x)| own - x).collect());
        let penalized = roles.reference.penalize(batch).unwrap();
        assert_close(&penalized.token_rewards, in_rewards, placement);
        let algorithm = policy_gradient(algorithm);
        assert_eq!(matches!(algorithm.kl, Kl::None), *placement == "None");
        assert_close(&[loss_of(&algorithm).loss - without.loss], &[*in_loss], placement);
    }
}

#[test]
fn rejected_tokens_keep_their_kl_penalty() {
    let rejection = json!({ "statistic": "TokenK2", "upper": 0.1 });
    let algorithm = json!({
        "kl": { "placement": "Reward", "estimator": "K2", "coefficient": 0.5 },
        "importanceCorrection": { "rejection": rejection },
    });
    let mut roles = roles_of(json!({ "algorithm": algorithm }));
    let mut batch = batch(&[3, 2]);
    batch.old_logprobs = Some(LOGPROBS.to_vec());
    batch.ref_logprobs = Some(LOGPROBS.iter().zip(REFERENCE_RATIOS).map(|(own, x)| own - x).collect());
    batch.rollout_logprobs = LOGPROBS.to_vec();
    batch.rollout_logprobs[2] -= 1.0;
    let correction = RolloutCorrection::of(&policy_gradient(algorithm));
    let got = correction.penalize_and_apply(&mut roles, batch).unwrap();
    assert_eq!(got.rows.mask(), [true, true, false, true, true]);
    let penalty = REFERENCE_RATIOS.map(|d| -0.25 * d * d);
    assert_close(&got.token_rewards, &penalty, "penalty");
}

#[test]
fn every_preference_divergence_scores_completions_by_its_formula() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let loss = |score: &dyn Fn(f64) -> f64| -sigmoid(0.5 * (score(0.8) - score(-0.4))).ln();
    let table = [
        ("ReverseKl", loss(&|u| u)),
        ("ForwardKl", loss(&|u| 1.0 - (-u).exp())),
        ("JensenShannon", loss(&|u| 2.0_f64.ln() + sigmoid(u).ln())),
        ("Alpha", loss(&|u| ((0.7 - 1.0) * u).exp_m1() / (0.7 - 1.0))),
    ];
    assert_complete("spec.algorithm.preference.divergence", &table);
    for (divergence, expected) in table {
        let alpha = if divergence == "Alpha" { json!(0.7) } else { Value::Null };
        let mut preference = json!({ "loss": "Sigmoid", "beta": 0.5, "divergence": divergence });
        rlt_tests::merge(&mut preference, json!({ "divergenceAlpha": alpha }));
        let spec = resolved(json!({ "algorithm": { "kind": "DPO", "preference": preference } }));
        let Some(Preference::Pairs(pairs)) = &spec.algorithm.preference else { panic!("{divergence}") };
        let rows = Rows::unmasked([1, 1]);
        let inputs = PreferenceInputs {
            rows: &rows,
            logprobs: &[-1.0, -2.0],
            ref_logprobs: Some(&[-1.8, -1.6]),
            log_sum_squares: None,
            mean_log_ratio: 0.0,
        };
        let outputs =
            preference_objective(pairs).evaluate(&inputs, &PreferenceDenominators::of(&rows)).unwrap();
        assert_close(&[outputs.loss], &[expected], divergence);
    }
}

/// Computes the generalized advantage estimation of one completion.
fn gae(rewards: &[f64], values: &[f64], gamma: f64, lambda: f64) -> Vec<f64> {
    let next_value = |token: usize| values.get(token + 1).copied().unwrap_or(0.0);
    let error = |token: usize| rewards[token] + gamma * next_value(token) - values[token];
    let num_tokens = rewards.len();
    let advantage = |from: usize| {
        (from..num_tokens)
            .zip(0..)
            .map(|(token, exponent)| (gamma * lambda).powi(exponent) * error(token))
            .sum()
    };
    (0..num_tokens).map(advantage).collect()
}

#[test]
fn each_lambda_of_an_estimator_with_a_critic_is_in_its_own_sum() {
    let rewards = [0.0, 0.1, 0.0, -0.2, 1.0, 0.0, 0.3, -1.0];
    let values = [0.3, -0.1, 0.4, 0.2, 0.5, -0.3, 0.1, 0.2];
    // Expected lambda of the advantages of completions of 5 and 3 tokens, and lambda of returns.
    let cases = [
        (json!({ "estimator": "Gae", "gamma": 0.9, "lambda": 0.8 }), [0.8, 0.8], 0.8),
        (
            json!({ "estimator": "LengthAdaptiveGae", "gamma": 0.9, "criticLambda": 0.7, "lengthFactor": 0.5 }),
            [1.0 - 1.0 / 2.5, 1.0 - 1.0 / 1.5],
            0.7,
        ),
    ];
    for (advantage, [first, second], of_returns) in cases {
        let changes = json!({ "algorithm": { "kind": "PPO", "advantage": advantage } });
        let (spec, roles) = (resolved(changes.clone()), roles_of(changes));
        let mut batch = batch(&[5, 3]);
        batch.token_rewards = rewards.to_vec();
        batch.values = Some(values.to_vec());
        let estimator = Estimator::of(spec.algorithm.policy_gradient.as_ref().unwrap(), &spec.rewards);
        let got = estimator.estimate(&roles, batch).unwrap();
        let of_lambdas = |first: f64, second: f64| {
            let second = gae(&rewards[5..], &values[5..], 0.9, second);
            [gae(&rewards[..5], &values[..5], 0.9, first), second].concat()
        };
        let advantages = masked_whiten(&got.rows, &of_lambdas(first, second), true).unwrap();
        assert_close(&got.advantages, &advantages, &advantage);
        let returns = of_lambdas(of_returns, of_returns);
        let returns: Vec<f64> =
            returns.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
        assert_close(&got.returns.unwrap(), &returns, &advantage);
    }
}

#[test]
fn the_value_clip_bounds_how_far_a_prediction_may_move() {
    for clip in [0.25, 0.75, 2.0] {
        let critic = json!({ "valueClip": clip, "learningRate": 0.0 });
        let mut roles = roles_of(json!({ "algorithm": { "kind": "PPO", "critic": critic } }));
        roles.critic.begin(&roles.actor).unwrap();
        let mut batch = batch(&[3, 2]);
        // The critic is new and predicts 0. The values before the update are set to 1, and the returns to -2.
        (batch.values, batch.returns) = (Some(vec![1.0; 5]), Some(vec![-2.0; 5]));
        let mini_batches = roles.critic.mini_batches;
        let report =
            roles.critic.value_function.as_mut().unwrap().learn(&batch, mini_batches).unwrap().metrics();
        let error = (1.0_f64 - clip).max(0.0) + 2.0;
        let got = ["critic/vf_loss", "critic/vf_clipfrac"].map(|name| report[name]);
        assert_close(&got, &[0.5 * error * error, if clip < 1.0 { 1.0 } else { 0.0 }], clip);
    }
}

#[test]
fn each_policy_for_failed_rewards_masks_its_own_status() {
    let policies = [("Mask", true), ("Zero", false)];
    for field in ["spec.rewards.onTimeout", "spec.rewards.onError"] {
        assert_complete(field, &policies);
    }
    for (on_timeout, masks_timeouts) in policies {
        for (on_error, masks_errors) in policies {
            let roles = roles_of(json!({ "rewards": { "onTimeout": on_timeout, "onError": on_error } }));
            let is_masked = |status| roles.rewards.masked.contains(&status);
            let got = [is_masked(RewardStatus::Timeout), is_masked(RewardStatus::Infra)];
            assert_eq!(got, [masks_timeouts, masks_errors], "{on_timeout} {on_error}");
        }
    }
}
