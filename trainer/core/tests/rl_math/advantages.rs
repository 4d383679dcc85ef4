//! Advantage estimators by verl's names.

use rlt_core::advantage::{AdvantageEstimator, AdvantageInputs};

use super::case::{Case, Outcome};

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
        ..AdvantageInputs::new(&rows, &token_rewards, &groups)
    };
    let got = estimator.estimate(&inputs).map_err(|error| error.to_string())?;
    case.expect("advantages", &got.advantages)?;
    case.expect("returns", &got.returns)
}

fn estimator(case: &Case) -> Result<AdvantageEstimator, String> {
    let normalize_by_std = case.arg("norm_adv_by_std").as_bool().unwrap_or(true);
    Ok(match case.function() {
        "grpo" => AdvantageEstimator::Grpo { normalize_by_std },
        "grpo_vectorized" => AdvantageEstimator::GrpoVectorized { normalize_by_std },
        "grpo_passk" => AdvantageEstimator::GrpoPassAtK { normalize_by_std },
        "gdpo" => AdvantageEstimator::Gdpo { normalize_by_std, weights: vec![1.0] },
        "rloo" => AdvantageEstimator::Rloo,
        "rloo_vectorized" => AdvantageEstimator::RlooVectorized,
        "reinforce_plus_plus" => AdvantageEstimator::ReinforcePlusPlus { gamma: case.number("gamma") },
        "reinforce_plus_plus_baseline" => AdvantageEstimator::ReinforcePlusPlusBaseline,
        "remax" => AdvantageEstimator::Remax,
        "opo" => AdvantageEstimator::Opo,
        "gpg_adv" => AdvantageEstimator::Gpg,
        "optimal_token_baseline" => AdvantageEstimator::OptimalTokenBaseline,
        "gae" => AdvantageEstimator::Gae { gamma: case.number("gamma"), lambda: case.number("lam") },
        unknown => return Err(format!("no function is known by the name {unknown}")),
    })
}
