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

/// Sets the losses of DPO's family: one with its parameters, or several with weights; `sft` has its own
/// field.
pub(super) fn finish(settings: &Settings, kind: &str, draft: &mut Draft) {
    let named = settings.list("loss_type");
    match kind {
        "DPO" => {}
        "CPO" => return contrastive(settings, draft),
        "KTO" => return unpaired(&named, draft),
        _ => return,
    }
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
        [(loss, weight)] if weight.as_f64() == Some(1.0) => {
            draft.set("spec.algorithm.preference.loss", *loss)
        }
        several => weighted(several, settings, draft),
    }
}

/// Sets the losses of CPO's trainer, SimPO and AlphaPO among them. TRL's SimPO keeps the likelihood of the
/// chosen completion unless `cpo_alpha` is 0; its AlphaPO has none.
fn contrastive(settings: &Settings, draft: &mut Draft) {
    let loss = settings.text("loss_type").unwrap_or_else(|| "sigmoid".to_owned());
    let ours = match loss.as_str() {
        "sigmoid" => "Cpo",
        "hinge" => "CpoHinge",
        "ipo" => "CpoIpo",
        "simpo" => "SimPo",
        "alphapo" => "AlphaPo",
        other => return draft.remark("algorithm", format!("loss_type={other} has no equal: Cpo is set.")),
    };
    draft.set("spec.algorithm.preference.loss", ours);
    let alpha = settings.number("alpha").unwrap_or(0.0);
    if matches!(ours, "SimPo" | "AlphaPo") {
        draft.set("spec.algorithm.kind", "SimPO");
        draft.set_some("spec.algorithm.preference.simpoGamma", settings.number("simpo_gamma"));
    }
    match ours {
        "SimPo" if draft.value("algorithm.preference.sftWeight").is_none() => {
            draft.set("spec.algorithm.preference.sftWeight", 1.0);
        }
        "AlphaPo" => {
            draft.set("spec.algorithm.preference.sftWeight", 0.0);
            draft.set("spec.algorithm.preference.alphaPoAlpha", alpha);
        }
        _ => {}
    }
    if ours != "AlphaPo" && alpha != 0.0 {
        draft.remark("algorithm", format!("alpha={alpha} has no equal with loss_type={loss}."));
    }
}

/// Sets KTO's loss, whose variant APO-zero has no reference point.
fn unpaired(named: &[String], draft: &mut Draft) {
    for loss in named {
        match loss.as_str() {
            "kto" => {}
            "apo_zero_unpaired" => draft.set("spec.algorithm.preference.referencePoint", false),
            other => draft.remark("algorithm", format!("loss_type={other} has no equal: KTO's own is set.")),
        }
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
