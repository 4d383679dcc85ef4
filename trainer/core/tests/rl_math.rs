//! Holds the RL arithmetic to values that verl's and TRL's own functions computed in float64
//! (`goldens/*.json`).
//!
//! Every file of them is read, every case of it must be reproduced to 1e-9, and a case with an unknown
//! function fails the test. `rl_math/` maps cases to functions; there is no arithmetic here.

#![expect(clippy::expect_used, clippy::panic, reason = "a case that cannot be read is a failed test")]

#[path = "rl_math/advantages.rs"]
mod advantages;
#[path = "rl_math/case.rs"]
mod case;
#[path = "rl_math/corrections.rs"]
mod corrections;
#[path = "rl_math/losses.rs"]
mod losses;
mod math_pairs;
mod objective;
#[path = "rl_math/others.rs"]
mod others;
mod preference;
#[path = "rl_math/preferences.rs"]
mod preferences;

use std::collections::BTreeMap;
use std::path::Path;

use case::{Case, Outcome};

fn run(case: &Case) -> Outcome {
    match case.function() {
        "policy_loss" => losses::policy_loss(case),
        "agg_loss" => losses::agg_loss(case),
        "value_loss" => losses::value_loss(case),
        "kl_penalty" => losses::kl_penalty(case),
        "kl_in_reward" => others::kl_in_reward(case),
        "adaptive_kl" => others::adaptive_kl(case),
        "logits" => others::logits(case),
        "masked_whiten" => others::masked_whiten(case),
        "karmarkar_karp" => others::karmarkar_karp(case),
        "rollout_is" => corrections::rollout_is(case),
        "rollout_rejection" => corrections::rollout_rejection(case),
        "dpo" => preferences::dpo(case),
        "bco" => preferences::bco(case),
        "reference_free" => preferences::reference_free(case),
        "kto" => preferences::kto(case),
        "reward_model" => preferences::reward_model(case),
        "process_reward" => preferences::process_reward(case),
        "reweighting" => others::reweighting(case),
        _ => advantages::estimate(case),
    }
}

#[test]
fn every_golden_case_is_reproduced() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let mut num_cases: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("golden folder") {
        let path = entry.expect("golden file").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        for case in case::read(&path) {
            *num_cases.entry(case.function().to_owned()).or_default() += 1;
            if let Err(error) = run(&case) {
                failures.push(format!("{case}: {error}"));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} cases fail, the first:\n{}",
        failures.len(),
        failures[..failures.len().min(12)].join("\n")
    );
    assert!(num_cases.len() >= 30, "the folder has lost functions: {num_cases:?}");
}

#[test]
fn an_unknown_function_fails() {
    let case = Case::of(serde_json::json!({"fn": "no_such_estimator", "args": {}, "expect": {}}));
    assert!(run(&case).expect_err("unknown").contains("no_such_estimator"));
}

#[test]
fn a_wrong_value_fails() {
    let json = serde_json::json!({
        "fn": "agg_loss",
        "args": {"loss_mat": [[1.0]], "loss_mask": [[1.0]], "loss_agg_mode": "token-mean"},
        "expect": {"loss": 1.0 + 2e-9},
    });
    assert!(run(&Case::of(json)).is_err());
}
