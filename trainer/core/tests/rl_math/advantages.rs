//! Advantage estimators by verl's names.

use rlt_core::advantage::{AdvantageEstimator, AdvantageInputs, gdpo, grpo_vectorized, rloo};
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
    // verl's variants that manifests do not offer are called directly.
    let got = match case.function() {
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
