//! Policy losses with gradients and metrics, aggregations, the critic's loss and KL estimators.

use rlt_core::kl::KlEstimator;
use rlt_core::loss::{
    Aggregation, Denominators, LossInputs, Objective, PolicyLoss, ValueLossInputs, value_loss as critic_loss,
};
use rlt_core::rows::Rows;
use serde_json::json;

use super::case::{Case, Outcome, TOLERANCE, compare, named};

pub(crate) fn policy_loss(case: &Case) -> Outcome {
    let objective = Objective {
        policy: policy(case)?,
        aggregation: aggregation(case, "response_mask")?,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    };
    let rows = case.rows("response_mask");
    let (logprobs, old_logprobs) = (case.values("log_prob"), case.values("old_log_prob"));
    let advantages = case.values("advantages");
    let weights = (!case.arg("rollout_is_weights").is_null()).then(|| case.values("rollout_is_weights"));
    let inputs = LossInputs {
        old_logprobs: Some(&old_logprobs),
        actor_logprobs: Some(&logprobs),
        importance_weights: weights.as_deref(),
        ..LossInputs::new(&rows, &advantages)
    };
    let prepared = objective.prepare(inputs, &denominators(&objective, &rows)).map_err(|e| e.to_string())?;
    let entropies = vec![0.0; rows.num_tokens()];
    let got = prepared.evaluate(0..rows.num_tokens(), &logprobs, &entropies).map_err(|e| e.to_string())?;
    case.expect("loss", &[got.loss])?;
    case.expect("d_log_prob", &got.dlogprobs)?;
    let metrics = got.metrics.values();
    for (name, expected) in case.expected("metrics").as_object().into_iter().flatten() {
        let (_, value) = metrics
            .iter()
            .find(|(known, _)| known == name)
            .ok_or_else(|| format!("metric {name} is missing"))?;
        compare(name, expected, &[*value], TOLERANCE)?;
    }
    Ok(())
}

/// verl's GMPO alone counts sequences without a token in its mean.
fn denominators(objective: &Objective, rows: &Rows) -> Denominators {
    match objective.policy {
        PolicyLoss::GeoMean(_) => Denominators { num_sequences: rows.num_rows(), ..Denominators::of(rows) },
        _ => Denominators::of(rows),
    }
}

/// The loss as a manifest chooses it: by its name there, with parameters by their names there.
fn policy(case: &Case) -> Result<PolicyLoss, String> {
    let both = case.number("clip_ratio");
    let parameters = json!({
        "clipLow": case.optional("clip_ratio_low").unwrap_or(both),
        "clipHigh": case.optional("clip_ratio_high").unwrap_or(both),
        "dualClip": case.number("clip_ratio_c"),
        "sapoTauPositive": case.optional("tau_pos"),
        "sapoTauNegative": case.optional("tau_neg"),
        "penalty": case.optional("dro_beta"),
    });
    let name = match case.text("name") {
        "vanilla" => "Vanilla",
        "dppo_tv" => "DppoTv",
        "dppo_kl" => "DppoKl",
        "gspo" => "Gspo",
        "sapo" => "Sapo",
        "gpg" => "Gpg",
        "geo_mean" => "GeoMean",
        "cispo" => "Cispo",
        "dro" => "Dro",
        unknown => return Err(format!("no policy loss is known by the name {unknown}")),
    };
    Ok(PolicyLoss::resolve(named(name)?, &named(parameters)?))
}

/// verl's default scale is the width of the padded batch.
fn aggregation(case: &Case, mask: &str) -> Result<Aggregation, String> {
    let width = case.arg(mask)[0].as_array().map_or(0, Vec::len) as f64;
    Ok(match case.text("loss_agg_mode") {
        "token-mean" => Aggregation::TokenMean,
        "token-sum" => Aggregation::TokenSum,
        "seq-mean-token-sum" => Aggregation::SequenceMeanTokenSum,
        "seq-mean-token-sum-norm" => {
            let scale = case.optional("loss_scale_factor").unwrap_or(width);
            Aggregation::SequenceMeanTokenSumNorm { normalization_tokens: scale as u32 }
        }
        "seq-mean-token-mean" => Aggregation::SequenceMeanTokenMean,
        unknown => return Err(format!("no aggregation is known by the name {unknown}")),
    })
}

/// verl multiplies by the number of ranks because its ranks average gradients afterwards; ours add.
pub(crate) fn agg_loss(case: &Case) -> Outcome {
    let rows = case.rows("loss_mask");
    let own = Denominators::of(&rows);
    let count = |name: &str, own: usize| case.optional(name).map_or(own, |count| count as usize);
    let batch = Denominators {
        num_tokens: count("batch_num_tokens", own.num_tokens),
        num_sequences: count("global_batch_size", own.num_sequences),
    };
    let got = aggregation(case, "loss_mask")?.aggregate(&rows, &case.values("loss_mat"), &batch);
    case.expect("loss", &[got * case.optional("dp_size").unwrap_or(1.0)])
}

pub(crate) fn value_loss(case: &Case) -> Outcome {
    let rows = case.rows("response_mask");
    let inputs = ValueLossInputs {
        rows: &rows,
        predictions: &case.values("vpreds"),
        old_values: &case.values("values"),
        returns: &case.values("returns"),
    };
    let aggregation = aggregation(case, "response_mask")?;
    let got = critic_loss(&inputs, case.number("cliprange_value"), aggregation, &Denominators::of(&rows))
        .map_err(|error| error.to_string())?;
    case.expect("loss", &[got.loss])?;
    case.expect("clipfrac", &[got.num_clipped as f64 / (rows.num_valid_tokens() as f64 + 1e-8)])
}

pub(crate) fn kl_penalty(case: &Case) -> Outcome {
    let estimator: KlEstimator = named(match case.text("kind") {
        "k1" | "kl" => "K1",
        "abs" => "Abs",
        "k2" | "mse" => "K2",
        "k3" | "low_var_kl" => "K3",
        "k1+" => "K1StraightThrough",
        "k3+" => "K3StraightThrough",
        unknown => return Err(format!("no KL estimator is known by the name {unknown}")),
    })?;
    let (logprobs, ref_logprobs) = (case.values("log_prob"), case.values("ref_log_prob"));
    let each = |f: fn(KlEstimator, f64, f64) -> f64| -> Vec<f64> {
        logprobs.iter().zip(&ref_logprobs).map(|(l, r)| f(estimator, *l, *r)).collect()
    };
    case.expect("kl", &each(KlEstimator::value))?;
    case.expect("d_log_prob", &each(KlEstimator::gradient))
}
