//! AdamW and its schedule, in which TRL's defaults all differ from ours.

use serde_json::json;

use crate::draft::Draft;
use crate::settings::Settings;

/// TRL's learning rate of PPO.
pub(super) const PPO_RATE: f64 = 3e-6;

/// Sets AdamW and its schedule, by TRL's defaults.
pub(super) fn finish(settings: &Settings, kind: &str, updates: u64, draft: &mut Draft) {
    let rate = match kind {
        "SFT" => 2e-5,
        "RewardModel" => 1e-4,
        "ProcessReward" => 1e-5,
        "OnlineDPO" => 5e-7,
        "PPO" => PPO_RATE,
        _ => 1e-6,
    };
    draft.set("spec.training.optimizer.learningRate", settings.number("learning_rate").unwrap_or(rate));
    draft.set("spec.training.optimizer.weightDecay", settings.number("weight_decay").unwrap_or(0.0));
    let (first, second) = (settings.number("adam_beta1"), settings.number("adam_beta2"));
    if first.is_some() || second.is_some() {
        draft.set("spec.training.optimizer.betas", json!([first.unwrap_or(0.9), second.unwrap_or(0.999)]));
    }
    course(settings, settings.number("learning_rate").unwrap_or(rate), draft);
    warmup(settings, updates, draft);
}

/// Sets the shape of the learning rate after the warm-up.
fn course(settings: &Settings, rate: f64, draft: &mut Draft) {
    let named = settings.text("lr_scheduler_type").unwrap_or_else(|| "linear".to_owned());
    let kind = match named.as_str() {
        "constant" | "constant_with_warmup" => "Constant",
        "cosine" => "Cosine",
        "cosine_with_min_lr" | "cosine_warmup_with_min_lr" => "Cosine",
        "linear" => "Linear",
        other => {
            draft.remark("training", format!("lr_scheduler_type={other} has no equal: Linear is set."));
            "Linear"
        }
    };
    draft.set("spec.training.schedule.kind", kind);
    if !named.ends_with("_with_min_lr") {
        return;
    }
    let given = |name: &str| {
        let whole = settings.get("lr_scheduler_kwargs").and_then(|kwargs| kwargs.get(name)?.as_f64());
        whole.or_else(|| settings.number(&format!("lr_scheduler_kwargs.{name}")))
    };
    match given("min_lr_rate").or_else(|| given("min_lr").map(|least| least / rate)) {
        Some(ratio) if (0.0..=1.0).contains(&ratio) => draft.set("spec.training.schedule.minRatio", ratio),
        Some(ratio) => {
            let text = format!("a minimum of {ratio} times the learning rate has no equal: it falls to 0.");
            draft.remark("training", text);
        }
        None => {
            let text = format!(
                "lr_scheduler_type={named} names no min_lr and no min_lr_rate: say schedule.minRatio."
            );
            draft.remark("training", text);
        }
    }
}

fn warmup(settings: &Settings, updates: u64, draft: &mut Draft) {
    let warmup = settings.number("warmup_steps").filter(|steps| *steps > 0.0);
    let share = settings.number("warmup_ratio").filter(|ratio| *ratio > 0.0);
    match (warmup, share.or(warmup.filter(|steps| *steps < 1.0))) {
        (_, Some(ratio)) => draft.set("spec.training.schedule.warmupRatio", ratio),
        (Some(_), None) => {
            let steps = settings.count("warmup_steps").map(|steps| steps.div_ceil(updates));
            draft.set_some("spec.training.schedule.warmupSteps", steps);
        }
        (None, None) => {}
    }
}
