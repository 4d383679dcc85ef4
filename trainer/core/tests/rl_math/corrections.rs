//! Importance weights and rejection of the rollout correction; thresholds are read as verl writes them.

use rlt_core::importance::{
    Divergence, RejectionLevel, RejectionRule, WeightBounds, WeightLevel, WeightRule, rollout_is as weigh,
    rollout_rejection as reject,
};
use serde_json::Value;

use super::case::{Case, Outcome, TOLERANCE, compare};

pub(crate) fn rollout_is(case: &Case) -> Outcome {
    let level = match case.text("level") {
        "token" => WeightLevel::Token,
        "sequence" => WeightLevel::Sequence,
        unknown => return Err(format!("no level is known by the name {unknown}")),
    };
    let bounds = match case.arg("threshold") {
        Value::String(text) if text.contains('_') => {
            let (lower, upper) = pair(text)?;
            WeightBounds::Mask { lower, upper }
        }
        Value::String(text) => WeightBounds::Truncate { upper: number(text)? },
        _ => WeightBounds::Truncate { upper: case.number("threshold") },
    };
    let rule = WeightRule { level, bounds, batch_normalize: case.flag("batch_normalize") };
    let got =
        weigh(&case.rows("response_mask"), &case.values("log_ratio"), &rule).map_err(|e| e.to_string())?;
    case.expect("weights", &got.weights)?;
    for (name, expected) in case.expected("metrics").as_object().into_iter().flatten() {
        let value = got.metrics.get(&format!("rollout_corr/{name}"));
        compare(name, expected, &[*value.ok_or_else(|| format!("metric {name} is missing"))?], TOLERANCE)?;
    }
    Ok(())
}

/// Modes and thresholds are lists with commas; a single threshold applies to every mode.
pub(crate) fn rollout_rejection(case: &Case) -> Outcome {
    let modes: Vec<&str> = case.text("mode").split(',').map(str::trim).collect();
    let mut thresholds: Vec<&str> = case.text("threshold").split(',').map(str::trim).collect();
    if thresholds.len() == 1 {
        thresholds.resize(modes.len(), thresholds[0]);
    }
    let rules: Vec<RejectionRule> = modes
        .iter()
        .zip(thresholds)
        .map(|(mode, threshold)| rule(mode, threshold))
        .collect::<Result<_, _>>()?;
    let got =
        reject(&case.rows("response_mask"), &case.values("log_ratio"), &rules).map_err(|e| e.to_string())?;
    let mask: Vec<f64> = got.mask.iter().map(|counts| f64::from(u8::from(*counts))).collect();
    case.expect("mask", &mask)?;
    case.expect("masked_fraction", &[got.metrics["rollout_corr/rollout_rs_masked_fraction"]])
}

fn rule(mode: &str, threshold: &str) -> Result<RejectionRule, String> {
    let (level, divergence) = mode.rsplit_once('_').ok_or_else(|| format!("mode {mode} has no level"))?;
    let level = match level {
        "token" => RejectionLevel::Token,
        "seq_sum" => RejectionLevel::SequenceSum,
        "seq_mean" => RejectionLevel::SequenceMean,
        "seq_max" => RejectionLevel::SequenceMax,
        unknown => return Err(format!("no rejection level is known by the name {unknown}")),
    };
    let divergence = match divergence {
        "k1" => {
            let (lower, upper) =
                pair(threshold).or_else(|_| number(threshold).map(|upper| (1.0 / upper, upper)))?;
            Divergence::K1 { lower, upper }
        }
        "k2" => Divergence::K2 { upper: number(threshold)? },
        "k3" => Divergence::K3 { upper: number(threshold)? },
        unknown => return Err(format!("no divergence is known by the name {unknown}")),
    };
    Ok(RejectionRule { level, divergence })
}

fn pair(threshold: &str) -> Result<(f64, f64), String> {
    let (lower, upper) =
        threshold.split_once('_').ok_or_else(|| format!("threshold {threshold} is no pair"))?;
    Ok((number(lower)?, number(upper)?))
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|error| format!("threshold {text}: {error}"))
}
