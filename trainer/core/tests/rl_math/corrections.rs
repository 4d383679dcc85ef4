//! Importance weights and rejection of the rollout correction; thresholds are read as verl writes them.

use rlt_core::importance::{
    Divergence, RejectionLevel, RejectionRule, WeightBounds, WeightLevel, WeightRule, rollout_is as weigh,
    rollout_rejection as reject,
};

use super::case::{Case, Outcome, compare};

pub(crate) fn rollout_is(case: &Case) -> Outcome {
    let level = match case.text("level") {
        "token" => WeightLevel::Token,
        "sequence" => WeightLevel::Sequence,
        unknown => return Err(format!("no level is known by the name {unknown}")),
    };
    let bounds = match case.optional("threshold") {
        Some(upper) => WeightBounds::Truncate { upper },
        None => {
            let (lower, upper) = pair(case.text("threshold"))?;
            WeightBounds::Mask { lower, upper }
        }
    };
    let rule = WeightRule { level, bounds, batch_normalize: case.flag("batch_normalize") };
    let got =
        weigh(&case.rows("response_mask"), &case.values("log_ratio"), &rule).map_err(|e| e.to_string())?;
    case.expect("weights", &got.weights)?;
    for (name, expected) in case.expected("metrics").as_object().into_iter().flatten() {
        let value = got.metrics.get(&format!("rollout_corr/{name}"));
        compare(name, expected, &[*value.ok_or_else(|| format!("metric {name} is missing"))?])?;
    }
    Ok(())
}

pub(crate) fn rollout_rejection(case: &Case) -> Outcome {
    let (level, divergence) = case
        .text("mode")
        .rsplit_once('_')
        .ok_or_else(|| format!("mode {} has no level", case.text("mode")))?;
    let level = match level {
        "token" => RejectionLevel::Token,
        "seq_sum" => RejectionLevel::SequenceSum,
        "seq_mean" => RejectionLevel::SequenceMean,
        "seq_max" => RejectionLevel::SequenceMax,
        unknown => return Err(format!("no rejection level is known by the name {unknown}")),
    };
    let divergence = divergence_of(divergence, case.text("threshold"))?;
    let rules = [RejectionRule { level, divergence }];
    let got =
        reject(&case.rows("response_mask"), &case.values("log_ratio"), &rules).map_err(|e| e.to_string())?;
    let mask: Vec<f64> = got.mask.iter().map(|counts| f64::from(u8::from(*counts))).collect();
    case.expect("mask", &mask)?;
    case.expect("masked_fraction", &[got.metrics["rollout_corr/rollout_rs_masked_fraction"]])
}

fn divergence_of(name: &str, threshold: &str) -> Result<Divergence, String> {
    let single = || threshold.parse::<f64>().map_err(|error| format!("threshold {threshold}: {error}"));
    Ok(match name {
        "k1" => {
            let (lower, upper) = pair(threshold).or_else(|_| single().map(|upper| (1.0 / upper, upper)))?;
            Divergence::K1 { lower, upper }
        }
        "k2" => Divergence::K2 { upper: single()? },
        "k3" => Divergence::K3 { upper: single()? },
        unknown => return Err(format!("no divergence is known by the name {unknown}")),
    })
}

fn pair(threshold: &str) -> Result<(f64, f64), String> {
    let (lower, upper) =
        threshold.split_once('_').ok_or_else(|| format!("threshold {threshold} is no pair"))?;
    let number = |text: &str| text.parse::<f64>().map_err(|error| format!("threshold {threshold}: {error}"));
    Ok((number(lower)?, number(upper)?))
}
