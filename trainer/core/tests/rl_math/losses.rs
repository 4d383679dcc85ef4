//! Policy losses with gradients and metrics, aggregations, the critic's loss and KL estimators.

use rlt_core::kl::KlEstimator;
use rlt_core::loss::{
    Aggregation, Clip, Denominators, LossInputs, Objective, PolicyLoss, ValueLossInputs,
    value_loss as critic_loss,
};
use rlt_core::rows::Rows;

use super::case::{Case, Outcome, compare};

pub(crate) fn policy_loss(case: &Case) -> Outcome {
    let objective = Objective {
        policy: policy(case)?,
        aggregation: aggregation(case, "response_mask")?,
        kl: None,
        entropy_coefficient: 0.0,
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
        compare(name, expected, &[*value])?;
    }
    Ok(())
}

/// verl's GMPO alone counts sequences without a token in its mean.
fn denominators(objective: &Objective, rows: &Rows) -> Denominators {
    match objective.policy {
        PolicyLoss::GeoMean { .. } => {
            Denominators { num_sequences: rows.num_rows(), ..Denominators::of(rows) }
        }
        _ => Denominators::of(rows),
    }
}

fn policy(case: &Case) -> Result<PolicyLoss, String> {
    let both = case.number("clip_ratio");
    let clip = Clip {
        low: case.optional("clip_ratio_low").unwrap_or(both),
        high: case.optional("clip_ratio_high").unwrap_or(both),
    };
    let ratio_cap = case.number("clip_ratio_c");
    Ok(match case.text("name") {
        "vanilla" => PolicyLoss::Vanilla { clip, dual_clip: Some(ratio_cap) },
        "dppo_tv" => PolicyLoss::DppoTv { clip, ratio_cap },
        "dppo_kl" => PolicyLoss::DppoKl { clip, ratio_cap },
        "gspo" => PolicyLoss::Gspo { clip },
        "sapo" => {
            PolicyLoss::Sapo { tau_positive: case.number("tau_pos"), tau_negative: case.number("tau_neg") }
        }
        "gpg" => PolicyLoss::Gpg,
        "geo_mean" => PolicyLoss::GeoMean { clip },
        "cispo" => PolicyLoss::Cispo { clip },
        "dro" => PolicyLoss::Dro { beta: case.number("dro_beta") },
        unknown => return Err(format!("no policy loss is known by the name {unknown}")),
    })
}

/// verl's default scale is the width of the padded batch.
fn aggregation(case: &Case, mask: &str) -> Result<Aggregation, String> {
    let width = case.arg(mask)[0].as_array().map_or(0, Vec::len) as f64;
    Ok(match case.text("loss_agg_mode") {
        "token-mean" => Aggregation::TokenMean,
        "token-sum" => Aggregation::TokenSum,
        "seq-mean-token-sum" => Aggregation::SeqMeanTokenSum,
        "seq-mean-token-sum-norm" => {
            Aggregation::SeqMeanTokenSumNorm { scale: case.optional("loss_scale_factor").unwrap_or(width) }
        }
        "seq-mean-token-mean" => Aggregation::SeqMeanTokenMean,
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
    let estimator = match case.text("kind") {
        "k1" | "kl" => KlEstimator::K1,
        "abs" => KlEstimator::Abs,
        "k2" | "mse" => KlEstimator::K2,
        "k3" | "low_var_kl" => KlEstimator::K3,
        "k1+" => KlEstimator::K1Plus,
        "k3+" => KlEstimator::K3Plus,
        unknown => return Err(format!("no KL estimator is known by the name {unknown}")),
    };
    let (logprobs, ref_logprobs) = (case.values("log_prob"), case.values("ref_log_prob"));
    let each = |f: fn(KlEstimator, f64, f64) -> f64| -> Vec<f64> {
        logprobs.iter().zip(&ref_logprobs).map(|(l, r)| f(estimator, *l, *r)).collect()
    };
    case.expect("kl", &each(KlEstimator::value))?;
    case.expect("d_log_prob", &each(KlEstimator::gradient))
}
