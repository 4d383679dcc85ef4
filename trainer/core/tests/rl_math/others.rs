//! KL inside the reward and its controller, logits, whitening, partitions.

use rlt_core::kl::{KlController, KlEstimator, kl_in_reward as penalize};
use rlt_core::logits::score;
use rlt_core::partition::{PartSizes, karmarkar_karp as partition};
use rlt_core::reweighting::Reweighting;
use rlt_core::whiten::{masked_moments, masked_whiten as whiten};

use super::case::{Case, Outcome, flat};

pub(crate) fn kl_in_reward(case: &Case) -> Outcome {
    let rows = case.unmasked_rows("token_level_scores");
    let got = penalize(
        &rows,
        &case.values("token_level_scores"),
        &case.values("old_log_prob"),
        &case.values("ref_log_prob"),
        KlEstimator::K1,
        case.number("kl_coef"),
    )
    .map_err(|error| error.to_string())?;
    case.expect("rewards", &got.token_rewards)
}

pub(crate) fn adaptive_kl(case: &Case) -> Outcome {
    let mut controller = KlController::Adaptive {
        coefficient: case.number("init"),
        target: case.number("target"),
        horizon: case.number("horizon"),
    };
    let mut values = Vec::new();
    for kl in case.values("kls") {
        controller.update(kl, case.number("n_steps") as usize);
        values.push(controller.coefficient());
    }
    case.expect("values", &values)
}

pub(crate) fn logits(case: &Case) -> Outcome {
    let rows = case.arg("logits").as_array().into_iter().flatten();
    let logits: Vec<Vec<f64>> = rows.flat_map(|row| row.as_array().into_iter().flatten()).map(flat).collect();
    let labels = case.values("labels");
    let scores: Vec<_> =
        logits.iter().zip(labels).map(|(logits, label)| score(logits, label as usize)).collect();
    let each = |field: fn(&rlt_core::logits::TokenScore) -> f64| scores.iter().map(field).collect::<Vec<_>>();
    case.expect("log_probs", &each(|score| score.logprob))?;
    case.expect("entropy", &each(|score| score.entropy))?;
    case.expect("sum_pi_squared", &each(|score| score.sum_pi_squared))
}

pub(crate) fn masked_whiten(case: &Case) -> Outcome {
    let (rows, values) = (case.rows("mask"), case.values("values"));
    let whitened = |shift| whiten(&rows, &values, shift).map_err(|error| error.to_string());
    case.expect("out", &whitened(true)?)?;
    case.expect("out_no_shift", &whitened(false)?)?;
    let moments = masked_moments(&rows, &values).map_err(|error| error.to_string())?;
    case.expect("mean", &[moments.mean])?;
    case.expect("var", &[moments.var])
}

/// The golden file lists the parts as verl returns them, and their sums in rising order.
pub(crate) fn karmarkar_karp(case: &Case) -> Outcome {
    let lens: Vec<u64> = case.values("seqlens").iter().map(|len| *len as u64).collect();
    let sizes = if case.flag("equal_size") { PartSizes::Equal } else { PartSizes::Free };
    let parts = partition(&lens, case.number("k") as usize, sizes).map_err(|error| error.to_string())?;
    let items: Vec<f64> = parts.iter().flatten().map(|item| *item as f64).collect();
    case.expect("partitions", &items)?;
    let mut sums: Vec<f64> =
        parts.iter().map(|part| part.iter().map(|item| lens[*item]).sum::<u64>() as f64).collect();
    sums.sort_by(f64::total_cmp);
    case.expect("sums", &sums)
}

pub(crate) fn reweighting(case: &Case) -> Outcome {
    let reweighting = match case.text("method") {
        "pow" => Reweighting::Pow { power: case.number("power") },
        "max_min" => Reweighting::MaxMin,
        "max_random" => Reweighting::MaxRandom,
        unknown => return Err(format!("no reweighting is known by the name {unknown}")),
    };
    case.expect("weights", &reweighting.weights(&case.values("scores")))
}
