//! TRL's GRPO loss, in which every part has TRL's defaults, not ours.

use crate::draft::Draft;
use crate::settings::Settings;

/// TRL's loss types, with our policy loss and aggregation.
const TYPES: [(&str, &str, &str); 6] = [
    ("grpo", "Vanilla", "SequenceMeanTokenMean"),
    ("dr_grpo", "Vanilla", "SequenceMeanTokenSumNorm"),
    ("cispo", "Cispo", "TokenMean"),
    ("sapo", "Sapo", "SequenceMeanTokenMean"),
    ("dapo", "Vanilla", "TokenMean"),
    ("bnpo", "Vanilla", "TokenMean"),
];

/// Sets `algorithm.loss` and the scaling of advantages.
///
/// `is_geo_mean` means GMPO, whose clip applies to the logarithm of the ratio and is 0.4 by default.
pub(super) fn finish(settings: &Settings, is_geo_mean: bool, draft: &mut Draft) {
    let loss = settings.text("loss_type").unwrap_or_else(|| "dapo".to_owned());
    let level = settings.text("importance_sampling_level").unwrap_or_else(|| "token".to_owned());
    let is_sequence = level == "sequence";
    if !is_sequence && level != "token" {
        draft.remark("algorithm", format!("importance_sampling_level={level} has no equal: token is set."));
    }
    let (policy, aggregation) = match TYPES.iter().find(|(name, ..)| *name == loss) {
        _ if is_geo_mean => ("GeoMean", "SequenceMeanTokenMean"),
        _ if is_sequence => ("Gspo", "SequenceMeanTokenMean"),
        Some((_, policy, aggregation)) => (*policy, *aggregation),
        None => ("Vanilla", "TokenMean"),
    };
    match loss.as_str() {
        "luspo" if is_sequence => draft.remark(
            "algorithm",
            "loss_type=luspo weighs a sequence by its length, which has no equal: sequences count alike.",
        ),
        "dapo" | "bnpo" | "dr_grpo" if is_sequence && !is_geo_mean => {
            let text = format!(
                "loss_type={loss} weighs the ratios of sequences by their length, which has no equal: sequences count alike, \
                 as with loss_type=grpo."
            );
            draft.remark("algorithm", text);
        }
        "cispo" | "sapo" if is_sequence && !is_geo_mean => {
            let text =
                format!("loss_type={loss} with ratios of sequences has no equal: {policy} clips them.");
            draft.remark("algorithm", text);
        }
        other if !TYPES.iter().any(|(name, ..)| *name == other) => {
            draft.remark(
                "algorithm",
                format!("loss_type={other} has no equal: {policy} with {aggregation} is set."),
            );
        }
        _ => {}
    }
    draft.set("spec.algorithm.loss.policy", policy);
    draft.set("spec.algorithm.loss.aggregation", aggregation);
    clip(settings, policy, draft);
    dual_clip(settings, policy, draft);
    scale(settings, draft);
}

/// Sets the clip of the ratio. CISPO's `epsilon_high` is the cap of the ratio itself, and its ratio has no
/// lower bound.
fn clip(settings: &Settings, policy: &str, draft: &mut Draft) {
    let low = settings.number("epsilon").unwrap_or(if policy == "GeoMean" { 0.4 } else { 0.2 });
    let high = settings.number("epsilon_high").unwrap_or(low);
    match policy {
        "Sapo" => {
            draft.set_some("spec.algorithm.loss.sapoTauPositive", settings.number("sapo_temperature_pos"));
            draft.set_some("spec.algorithm.loss.sapoTauNegative", settings.number("sapo_temperature_neg"));
        }
        "Cispo" => {
            draft.set("spec.algorithm.loss.clipLow", 1.0);
            draft.set("spec.algorithm.loss.clipHigh", (high - 1.0).max(0.0));
            if high < 1.0 {
                let text = format!(
                    "cispo caps the ratio at epsilon_high={high}, below 1, which has no equal: the cap is 1 (clipHigh 0)."
                );
                draft.remark("algorithm", text);
            }
        }
        _ => {
            draft.set("spec.algorithm.loss.clipLow", low);
            draft.set("spec.algorithm.loss.clipHigh", high);
        }
    }
}

/// Sets the dual clip: TRL's `delta` caps the ratio of tokens with a negative advantage, which bounds their
/// loss.
fn dual_clip(settings: &Settings, policy: &str, draft: &mut Draft) {
    let Some(delta) = settings.number("delta") else { return };
    if policy == "Vanilla" {
        draft.set("spec.algorithm.loss.dualClip", delta);
    } else {
        draft.remark("algorithm", format!("delta={delta} has no equal with the policy loss {policy}."));
    }
}

fn scale(settings: &Settings, draft: &mut Draft) {
    let scale = settings.text("scale_rewards").unwrap_or_else(|| "group".to_owned());
    if scale == "batch" {
        draft.remark(
            "algorithm",
            "scale_rewards=batch has no equal: rewards are divided by their group's deviation.",
        );
    }
    let divides = !matches!(scale.as_str(), "none" | "false" | "False");
    if divides && !matches!(scale.as_str(), "group" | "batch" | "true" | "True") {
        draft.remark("algorithm", format!("scale_rewards={scale} has no equal: group is set."));
    }
    draft.set("spec.algorithm.advantage.normalizeByStd", divides);
}
