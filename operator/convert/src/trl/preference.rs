//! TRL's pair losses: DPO's family, SimPO of CPO, and weighted sums of losses.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::settings::Settings;

/// TRL's DPO losses, each with ours.
const PAIR_LOSSES: [(&str, &str); 14] = [
    ("sigmoid", "Sigmoid"),
    ("sigmoid_norm", "SigmoidNorm"),
    ("hinge", "Hinge"),
    ("ipo", "Ipo"),
    ("robust", "Robust"),
    ("exo_pair", "ExoPair"),
    ("discopop", "DiscoPop"),
    ("nca_pair", "NcaPair"),
    ("bco_pair", "BcoPair"),
    ("sppo_hard", "SppoHard"),
    ("apo_zero", "ApoZero"),
    ("apo_down", "ApoDown"),
    ("aot", "Aot"),
    ("aot_unpaired", "AotUnpaired"),
];

/// Field of a single loss.
const LOSS: &str = "spec.algorithm.preference.loss";

/// Sets the loss that `loss_type` names, with its own parameters, for the kinds that have several.
pub(super) fn finish(settings: &Settings, kind: &str, draft: &mut Draft) {
    match kind {
        "DPO" => pairs(settings, draft),
        "CPO" => cpo(settings, draft),
        "KTO" => kto(settings, draft),
        _ => {}
    }
}

/// Sets the loss of CPO. TRL's SimPO and AlphaPO are losses of CPO, to which it adds CPO's likelihood of the
/// chosen completion by default.
fn cpo(settings: &Settings, draft: &mut Draft) {
    let loss = settings.text("loss_type").unwrap_or_else(|| "sigmoid".to_owned());
    let alpha = settings.number("alpha").filter(|alpha| *alpha != 0.0);
    match loss.as_str() {
        "sigmoid" => {}
        "hinge" => draft.set(LOSS, "CpoHinge"),
        "ipo" => draft.set(LOSS, "CpoIpo"),
        "simpo" | "alphapo" => {
            draft.set("spec.algorithm.kind", "SimPO");
            draft.set_some("spec.algorithm.preference.simpoGamma", settings.number("simpo_gamma"));
            let weight = if loss == "alphapo" { 0.0 } else { settings.number("cpo_alpha").unwrap_or(1.0) };
            draft.set("spec.algorithm.preference.sftWeight", weight);
            if let Some(alpha) = alpha {
                draft.set(LOSS, "AlphaPo");
                draft.set("spec.algorithm.preference.alphaPoAlpha", alpha);
            }
            return;
        }
        other => draft.remark("algorithm", format!("loss_type={other} has no equal: Cpo is set.")),
    }
    if let Some(alpha) = alpha {
        let text =
            format!("alpha={alpha} has no equal with loss_type={loss}: AlphaPo has the margin of SimPo.");
        draft.remark("algorithm", text);
    }
}

/// Sets the loss of KTO: without its reference point it is TRL's `apo_zero_unpaired`.
fn kto(settings: &Settings, draft: &mut Draft) {
    for loss in settings.list("loss_type") {
        match loss.as_str() {
            "kto" => {}
            "apo_zero_unpaired" => draft.set("spec.algorithm.preference.referencePoint", false),
            other => {
                draft.remark("algorithm", format!("loss_type={other} has no equal: that of KTO is set."))
            }
        }
    }
}

/// Sets the loss of online DPO, whose IPO takes sums of log-probs in TRL.
pub(super) fn online(settings: &Settings, draft: &mut Draft) {
    match settings.text("loss_type").as_deref() {
        None | Some("sigmoid") => {}
        Some("ipo") => {
            draft.set(LOSS, "Ipo");
            let text =
                "loss_type=ipo of TRL's online DPO compares sums of log-probs, Ipo their means per token.";
            draft.remark("algorithm", text);
        }
        Some(other) => draft.remark("algorithm", format!("loss_type={other} has no equal: Sigmoid is set.")),
    }
}

/// Sets the losses of DPO's family: one with its parameters, or several with weights; `sft` has its own
/// field.
fn pairs(settings: &Settings, draft: &mut Draft) {
    let named = settings.list("loss_type");
    let given = settings.get("loss_weights").and_then(Value::as_array).cloned().unwrap_or_default();
    let weights = given.into_iter().chain(std::iter::repeat(json!(1.0)));
    let mut losses = Vec::new();
    for (loss, weight) in named.iter().zip(weights) {
        match PAIR_LOSSES.iter().find(|(theirs, _)| theirs == loss) {
            Some((_, ours)) => losses.push((*ours, weight)),
            None if loss == "sft" => draft.set("spec.algorithm.preference.sftWeight", weight),
            None => draft.remark("algorithm", format!("loss_type={loss} has no equal.")),
        }
    }
    match losses.as_slice() {
        [] => {}
        [(loss, weight)] if weight.as_f64() == Some(1.0) => draft.set(LOSS, *loss),
        several => weighted(several, settings, draft),
    }
}

/// Sets weighted losses, each with its own parameters, which are not set elsewhere.
fn weighted(losses: &[(&str, Value)], settings: &Settings, draft: &mut Draft) {
    let item = |(loss, weight): &(&str, Value)| {
        let mut item =
            json!({"loss": loss, "weight": weight, "beta": settings.number("beta").unwrap_or(0.1)});
        let own = match *loss {
            "Robust" | "ExoPair" | "Aot" | "AotUnpaired" => Some(("label_smoothing", "labelSmoothing")),
            "DiscoPop" => Some(("discopop_tau", "discopopTau")),
            _ => None,
        };
        if let Some((value, field)) = own.and_then(|(key, field)| Some((settings.number(key)?, field))) {
            item[field] = json!(value);
        }
        item
    };
    draft.set("spec.algorithm.preference.losses", losses.iter().map(item).collect::<Vec<_>>());
    for field in ["beta", "labelSmoothing", "discopopTau"] {
        draft.remove(&format!("spec.algorithm.preference.{field}"));
    }
}
