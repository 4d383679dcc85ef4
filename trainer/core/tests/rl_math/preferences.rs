//! Preference losses, KTO and reward-model losses, against TRL's own methods (`goldens/preference.py`).

use rlt_core::kto::{Kto, KtoInputs, ReferencePoint};
use rlt_core::preference::{
    BcoPair, Divergence, PreferenceDenominators, PreferenceInputs, PreferenceLoss, PreferenceObjective,
    RunningMean,
};
use rlt_core::reward_model::{PairScores, bradley_terry, process_reward_loss};
use rlt_core::rows::Rows;
use serde_json::{Value, json};

use super::case::{Case, Outcome, compare, flat, named};

/// Ragged rows, all of whose tokens count.
fn ragged(case: &Case, name: &str) -> Rows {
    Rows::unmasked(case.arg(name).as_array().into_iter().flatten().map(|row| flat(row).len()))
}

/// TRL's loss by its name in manifests.
fn loss(name: &str, case: &Case) -> Result<PreferenceLoss, String> {
    let name = match name {
        "sigmoid" => "Sigmoid",
        "sigmoid_norm" => "SigmoidNorm",
        "hinge" => "Hinge",
        "ipo" => "Ipo",
        "robust" => "Robust",
        "exo_pair" => "ExoPair",
        "discopop" => "DiscoPop",
        "nca_pair" => "NcaPair",
        "bco_pair" => "BcoPair",
        "sppo_hard" => "SppoHard",
        "apo_zero" => "ApoZero",
        "apo_down" => "ApoDown",
        "aot" => "Aot",
        "aot_unpaired" => "AotUnpaired",
        "cpo" => "Cpo",
        "cpo_hinge" => "CpoHinge",
        "cpo_ipo" => "CpoIpo",
        "simpo" => "SimPo",
        "alphapo" => "AlphaPo",
        "orpo" => "Orpo",
        unknown => return Err(format!("no preference loss is known by the name {unknown}")),
    };
    let parameters = json!({
        "beta": case.optional("beta"),
        "labelSmoothing": case.optional("label_smoothing"),
        "discopopTau": case.optional("discopop_tau"),
        "simpoGamma": case.optional("simpo_gamma"),
        "alphaPoAlpha": case.optional("alpha_po"),
    });
    Ok(PreferenceLoss::resolve(named(name)?, &named(parameters)?))
}

pub(crate) fn dpo(case: &Case) -> Outcome {
    let names: Vec<&str> =
        case.arg("losses").as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let weights = if case.arg("weights").is_null() { vec![1.0; names.len()] } else { case.values("weights") };
    let (likelihood, pairwise): (Vec<_>, Vec<_>) =
        names.iter().zip(weights).partition(|(name, _)| **name == "sft");
    let weighted = pairwise.into_iter().map(|(name, weight)| Ok((loss(name, case)?, weight)));
    let objective = PreferenceObjective {
        losses: weighted.collect::<Result<_, String>>()?,
        divergence: match case.text("divergence") {
            "reverse_kl" => Divergence::ReverseKl,
            "forward_kl" => Divergence::ForwardKl,
            "js_divergence" => Divergence::JensenShannon,
            "alpha_divergence" => Divergence::Alpha { alpha: case.number("alpha") },
            unknown => return Err(format!("no divergence is known by the name {unknown}")),
        },
        desensitization: case.optional("ld_alpha"),
        weigh_by_policy: case.flag("wpo"),
        imitation: likelihood.iter().map(|(_, weight)| weight).sum(),
    };
    evaluate(case, &objective)
}

/// Consecutive updates with a running mean of rewards. TRL's loss is the mean over completions.
pub(crate) fn bco(case: &Case) -> Outcome {
    let beta = case.number("beta");
    let objective = PreferenceObjective::new(BcoPair { beta, running_mean: true });
    let mut mean = RunningMean::default();
    let updates = case.arg("updates").as_array().into_iter().flatten();
    for (idx, update) in updates.enumerate() {
        let part = |name: &str| flat(&update[name]);
        let (logprobs, ref_logprobs) = (part("logprobs"), part("ref_logprobs"));
        let completions = update["logprobs"].as_array().into_iter().flatten();
        let rows = Rows::unmasked(completions.map(|row| flat(row).len()));
        let inputs = PreferenceInputs {
            rows: &rows,
            logprobs: &logprobs,
            ref_logprobs: Some(&ref_logprobs),
            log_sum_squares: None,
            mean_log_ratio: 0.0,
        };
        let text = |error: rlt_core::loss::LossError| error.to_string();
        mean = mean.with(&objective.log_ratios(&inputs).map_err(text)?);
        let inputs = PreferenceInputs { mean_log_ratio: mean.mean(), ..inputs };
        let got = objective.evaluate(&inputs, &PreferenceDenominators::of(&rows)).map_err(text)?;
        let expected = |name: &str| &case.expected("updates")[idx][name];
        compare("delta", expected("delta"), &[beta * mean.mean()], super::case::TOLERANCE)?;
        compare("loss", expected("loss"), &[got.loss / 2.0], super::case::TOLERANCE)?;
        let halves: Vec<f64> = got.dlogprobs.iter().map(|slope| slope / 2.0).collect();
        compare("d_logprobs", expected("d_logprobs"), &halves, super::case::TOLERANCE)?;
    }
    Ok(())
}

pub(crate) fn reference_free(case: &Case) -> Outcome {
    let name = match case.text("loss") {
        "sigmoid" => "cpo",
        "hinge" => "cpo_hinge",
        "ipo" => "cpo_ipo",
        name => name,
    };
    let imitation = case.number("imitation");
    evaluate(case, &PreferenceObjective { imitation, ..PreferenceObjective::new(loss(name, case)?) })
}

/// Single precision where TRL refuses another: its derivatives have seven digits.
fn evaluate(case: &Case, objective: &PreferenceObjective) -> Outcome {
    let (rows, logprobs) = (ragged(case, "logprobs"), case.values("logprobs"));
    let optional = |name: &str| (!case.arg(name).is_null()).then(|| case.values(name));
    let (ref_logprobs, log_sum_squares) = (optional("ref_logprobs"), optional("log_sum_squares"));
    let inputs = PreferenceInputs {
        rows: &rows,
        logprobs: &logprobs,
        ref_logprobs: ref_logprobs.as_deref(),
        log_sum_squares: log_sum_squares.as_deref(),
        mean_log_ratio: 0.0,
    };
    let got =
        objective.evaluate(&inputs, &PreferenceDenominators::of(&rows)).map_err(|error| error.to_string())?;
    let tolerance = if case.arg("single_precision") == true { 2e-6 } else { super::case::TOLERANCE };
    compare("loss", case.expected("loss"), &[got.loss], tolerance)?;
    compare("d_logprobs", case.expected("d_logprobs"), &got.dlogprobs, tolerance)?;
    if case.expected("rewards").is_null() {
        return Ok(());
    }
    let metrics = got.metrics;
    let rewards = [metrics.chosen_reward, metrics.rejected_reward, metrics.accuracy];
    compare("rewards", case.expected("rewards"), &rewards, tolerance)
}

pub(crate) fn kto(case: &Case) -> Outcome {
    let (rows, logprobs) = (ragged(case, "logprobs"), case.values("logprobs"));
    let labels: Vec<bool> = case.values("labels").into_iter().map(|label| label != 0.0).collect();
    let kto = Kto {
        beta: case.number("beta"),
        desirable_weight: case.number("desirable_weight"),
        undesirable_weight: case.number("undesirable_weight"),
        reference_point: case.text("loss") == "kto",
    };
    let mismatched = ragged(case, "kl_logprobs");
    let point = ReferencePoint::of(&mismatched, &case.values("kl_logprobs"), &case.values("kl_ref_logprobs"))
        .map_err(|error| error.to_string())?;
    let ref_logprobs = case.values("ref_logprobs");
    let inputs = KtoInputs { rows: &rows, logprobs: &logprobs, ref_logprobs: &ref_logprobs, labels: &labels };
    let got = kto.evaluate(&inputs, &point, labels.len()).map_err(|error| error.to_string())?;
    case.expect("z", &[if kto.reference_point { point.z() } else { 0.0 }])?;
    case.expect("loss", &[got.loss])?;
    case.expect("d_logprobs", &got.dlogprobs)
}

pub(crate) fn reward_model(case: &Case) -> Outcome {
    let margins = (!case.arg("margins").is_null()).then(|| case.values("margins"));
    let (chosen, rejected) = (case.values("chosen"), case.values("rejected"));
    let scores = PairScores { chosen: &chosen, rejected: &rejected, margins: margins.as_deref() };
    let got = bradley_terry(&scores, case.optional("centring").unwrap_or(0.0), chosen.len())
        .map_err(|error| error.to_string())?;
    case.expect("loss", &[got.loss])?;
    case.expect("d_chosen", &got.dchosen)?;
    case.expect("d_rejected", &got.drejected)?;
    case.expect("accuracy", &[got.num_right as f64 / chosen.len() as f64])
}

pub(crate) fn process_reward(case: &Case) -> Outcome {
    let logits: Vec<[f64; 2]> = case.values("logits").chunks(2).map(|pair| [pair[0], pair[1]]).collect();
    let labels: Vec<bool> = case.values("labels").into_iter().map(|label| label != 0.0).collect();
    let got = process_reward_loss(&logits, &labels, labels.len()).map_err(|error| error.to_string())?;
    case.expect("loss", &[got.loss])?;
    case.expect("d_logits", &got.dlogits.concat())
}
