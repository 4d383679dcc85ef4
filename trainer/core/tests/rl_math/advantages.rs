//! Advantage estimators by verl's names.

use rlt_core::advantage::{
    AdvantageEstimator, AdvantageInputs, gdpo, gpg, grpo, grpo_vectorized, opo, reinforce_plus_plus_baseline,
    rloo,
};
use rlt_core::advantage::{OptimalTokenBaselineInputs, optimal_token_baseline};
use serde_json::json;

use super::case::{Case, Outcome, named};

pub(crate) fn estimate(case: &Case) -> Outcome {
    let estimator = estimator(case)?;
    let rows = case.rows("response_mask");
    let token_rewards = case.values("token_level_rewards");
    let groups = if case.arg("index").is_null() { Vec::new() } else { case.groups("index") };
    let optional = |name: &str| (!case.arg(name).is_null()).then(|| case.values(name));
    let (greedy_rewards, values) = (optional("reward_baselines"), optional("values"));
    let (old_logprobs, sum_pi_squared) = (optional("old_log_probs"), optional("sum_pi_squared"));
    let inputs = AdvantageInputs {
        greedy_rewards: greedy_rewards.as_deref(),
        values: values.as_deref(),
        old_logprobs: old_logprobs.as_deref(),
        sum_pi_squared: sum_pi_squared.as_deref(),
        reward_parts: &[rows.sums(&token_rewards)],
        reward_weights: &[1.0],
        ..AdvantageInputs::new(&rows, &token_rewards, &groups)
    };
    let by_std = case.arg("norm_adv_by_std").as_bool().unwrap_or(true);
    let has_lone_row = groups.iter().any(|group| groups.iter().filter(|other| *other == group).count() == 1);
    // verl's variants that manifests do not offer are called directly. So are the functions for batches in
    // which a group has one row: verl keeps its reward, an estimator of a manifest gives it 0.
    let got = match case.function() {
        "grpo" if has_lone_row => grpo(&rows, &token_rewards, &groups, by_std),
        "opo" if has_lone_row => opo(&rows, &token_rewards, &groups),
        "gpg_adv" if has_lone_row => gpg(&rows, &token_rewards, &groups),
        "reinforce_plus_plus_baseline" if has_lone_row => {
            reinforce_plus_plus_baseline(&rows, &token_rewards, &groups)
        }
        "gdpo" if has_lone_row => gdpo(&rows, inputs.reward_parts, inputs.reward_weights, &groups, by_std),
        "optimal_token_baseline" if has_lone_row => optimal_token_baseline(&OptimalTokenBaselineInputs {
            rows: &rows,
            token_rewards: &token_rewards,
            groups: &groups,
            old_logprobs: old_logprobs.as_deref().unwrap_or_default(),
            sum_pi_squared: sum_pi_squared.as_deref().unwrap_or_default(),
            importance_weights: None,
        }),
        "grpo_vectorized" => grpo_vectorized(&rows, &token_rewards, &groups, by_std),
        "rloo" => rloo(&rows, &token_rewards, &groups),
        "gdpo" if !by_std => gdpo(&rows, inputs.reward_parts, inputs.reward_weights, &groups, false),
        _ => estimator.estimate(&inputs),
    };
    let got = got.map_err(|error| error.to_string())?;
    case.expect("advantages", &got.advantages)?;
    case.expect("returns", &got.returns)
}

/// The estimator as a manifest chooses it: by its name there, with parameters by their names there.
fn estimator(case: &Case) -> Result<AdvantageEstimator, String> {
    let name = match case.function() {
        "grpo" | "grpo_vectorized" => "Grpo",
        "grpo_passk" => "GrpoPassk",
        "gdpo" => "Gdpo",
        "rloo" | "rloo_vectorized" => "Rloo",
        "reinforce_plus_plus" => "ReinforcePlusPlus",
        "reinforce_plus_plus_baseline" => "ReinforcePlusPlusBaseline",
        "remax" => "ReMax",
        "opo" => "Opo",
        "gpg_adv" => "Gpg",
        "optimal_token_baseline" => "OptimalTokenBaseline",
        "gae" => "Gae",
        unknown => return Err(format!("no function is known by the name {unknown}")),
    };
    let parameters = json!({
        "normalizeByStd": case.arg("norm_adv_by_std"),
        "gamma": case.optional("gamma"),
        "lambda": case.optional("lam"),
    });
    Ok(AdvantageEstimator::resolve(named(name)?, &named(parameters)?))
}
