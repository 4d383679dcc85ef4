//! TRL's trainers that sample completions without a GRPO loss: RLOO, PPO and online DPO.

use serde_json::Value;

use super::preference;
use crate::draft::Draft;
use crate::settings::Settings;

/// Sets fields that only RLOO, PPO and online DPO have. Other kinds are unchanged.
pub(super) fn finish(settings: &Settings, kind: &str, draft: &mut Draft) {
    match kind {
        "RLOO" => rloo(settings, draft),
        "PPO" => ppo(settings, draft),
        "OnlineDPO" => online_dpo(settings, draft),
        _ => {}
    }
}

/// Sets a field to TRL's default, unless a setting has set it.
fn set_default(draft: &mut Draft, path: &str, value: impl Into<Value>) {
    if draft.value(path).is_none() {
        draft.set(path, value);
    }
}

fn rloo(settings: &Settings, draft: &mut Draft) {
    let low = settings.number("epsilon").unwrap_or(0.2);
    let high = settings.number("epsilon_high").unwrap_or(low);
    draft.set("spec.algorithm.loss.clipLow", low);
    draft.set("spec.algorithm.loss.clipHigh", high);
    draft.remark(
        "algorithm",
        "RLOO of TRL clips the ratio of a sequence, here the ratio of each token is clipped: they differ after the first \
         update of a step.",
    );
    let range = settings.get("reward_clip_range").and_then(Value::as_array);
    if let Some([least, most]) = range.map(Vec::as_slice) {
        draft.set("spec.rewards.clip.min", least.clone());
        draft.set("spec.rewards.clip.max", most.clone());
    }
}

fn ppo(settings: &Settings, draft: &mut Draft) {
    set_default(draft, "training.epochsPerBatch", 4);
    set_default(draft, "rollout.temperature", 0.7);
    set_default(draft, "algorithm.advantage.gamma", 1.0);
    set_default(draft, "algorithm.advantage.lambda", 0.95);
    set_default(draft, "algorithm.critic.valueClip", 0.2);
    let clip = settings.number("cliprange").unwrap_or(0.2);
    draft.set("spec.algorithm.loss.clipLow", clip);
    draft.set("spec.algorithm.loss.clipHigh", clip);
    let stop = settings.count("stop_token_id");
    draft.set_some("spec.rollout.stopTokenIds", stop.map(|id| vec![id]));
    let rate = settings.number("learning_rate").unwrap_or(super::schedule::PPO_RATE);
    draft.set("spec.algorithm.critic.learningRate", rate);
    draft.remark(
        "algorithm",
        "the critic of TRL shares the actor's optimizer and schedule: here its learning rate is constant.",
    );
    if draft.has("algorithm.kl.coefficient") {
        let estimator = match settings.text("kl_estimator").as_deref() {
            None | Some("k1") => "K1",
            Some("k3") => "K3",
            Some(other) => {
                draft.remark("algorithm", format!("kl_estimator={other} has no equal: K1 is set."));
                "K1"
            }
        };
        draft.set("spec.algorithm.kl.estimator", estimator);
    }
}

fn online_dpo(settings: &Settings, draft: &mut Draft) {
    set_default(draft, "rollout.temperature", 0.9);
    preference::online(settings, draft);
}
