//! `grpo_fast` and its variants: groups, loss and KL.

use serde_json::json;

use super::rewards;
use crate::draft::Draft;
use crate::settings::{Settings, is_true};

/// Sets the fields of jobs that sample completions, for `grpo_fast` and its variants.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let prompts = settings.count("num_unique_prompts_rollout").unwrap_or(16);
    let batches = settings.count("num_mini_batches").unwrap_or(1).max(1);
    let samples = settings.count("num_samples_per_prompt_rollout").unwrap_or(4);
    draft.set("spec.training.promptsPerStep", prompts);
    draft.set("spec.training.promptsPerUpdate", (prompts / batches).max(1));
    draft.set("spec.rollout.samplesPerPrompt", samples);
    draft.set("spec.data.maxPromptTokens", settings.count("max_prompt_token_length").unwrap_or(256));
    draft.set("spec.rollout.maxCompletionTokens", settings.count("response_length").unwrap_or(256));
    draft.set_some("spec.training.epochsPerBatch", settings.count("num_epochs"));
    let episodes = settings.count("total_episodes").unwrap_or(100_000);
    draft.set("spec.training.steps", (episodes / prompts.saturating_mul(samples).max(1)).max(1));
    let loss = settings.text("loss_fn").unwrap_or_else(|| "dapo".to_owned());
    let loss = loss.trim_start_matches("GRPOLossType.");
    let is_cispo = loss == "cispo";
    if !is_cispo && loss != "dapo" {
        draft.remark("algorithm", format!("loss_fn={loss} has no equal: Vanilla is set."));
    }
    // CISPO's ratio has no lower bound in open-instruct, which is a clip of 1.
    let low = if is_cispo { 1.0 } else { settings.number("clip_lower").unwrap_or(0.2) };
    draft.set("spec.algorithm.loss.policy", if is_cispo { "Cispo" } else { "Vanilla" });
    draft.set("spec.algorithm.loss.clipLow", low);
    draft.set("spec.algorithm.loss.clipHigh", settings.number("clip_higher").unwrap_or(0.272));
    aggregation(settings, draft);
    kl(settings, draft);
    let stop = settings.list("stop_strings");
    draft.set_some("spec.rollout.stop", Some(stop).filter(|texts| !texts.is_empty()));
    let scale = settings.text("advantage_normalization_type").unwrap_or_else(|| "centered".to_owned());
    let divides = scale == "standard";
    if !divides && scale != "centered" {
        draft.remark(
            "algorithm",
            format!("advantage_normalization_type={scale} has no equal: centered is set."),
        );
    }
    draft.set("spec.algorithm.advantage.normalizeByStd", divides);
    if settings.is_true("active_sampling") {
        draft.set("spec.algorithm.dynamicSampling.metric", "Score");
    } else if settings.get("filter_zero_std_samples").is_none_or(is_true) {
        let text = "open-instruct leaves groups of equal rewards out of an update: here they stay, with advantage 0.";
        draft.remark("algorithm", text);
    }
    if settings.get("async_steps").is_none() {
        let text = "async_steps, 8 by default there, has no equal: sampling and training take turns, on the newest weights.";
        draft.remark("rollout", text);
    }
    rewards::finish(settings, draft);
}

fn aggregation(settings: &Settings, draft: &mut Draft) {
    let denominator = settings.text("loss_denominator").unwrap_or_else(|| "token".to_owned());
    match denominator.parse::<f64>() {
        Ok(tokens) => {
            draft.set("spec.algorithm.loss.aggregation", "SequenceMeanTokenSumNorm");
            draft.set("spec.algorithm.loss.normalizationTokens", json!(tokens.round()));
        }
        Err(_) => {
            if denominator != "token" {
                let text = format!("loss_denominator={denominator} has no equal: TokenMean is set.");
                draft.remark("algorithm", text);
            }
            draft.set("spec.algorithm.loss.aggregation", "TokenMean");
        }
    }
}

fn kl(settings: &Settings, draft: &mut Draft) {
    let beta = settings.number("beta").unwrap_or(0.05);
    let has_reference = settings.get("load_ref_policy").is_none() || settings.is_true("load_ref_policy");
    if beta == 0.0 || !has_reference {
        draft.set("spec.algorithm.kl.placement", "None");
        return;
    }
    // KL estimators: 0 is the difference d, 1 half its square, 2 exp(-d) - 1 + d.
    let estimator = match settings.count("kl_estimator").unwrap_or(2) {
        0 => "K1",
        1 => "K2",
        2 => "K3",
        other => {
            draft.remark("algorithm", format!("kl_estimator={other} has no equal: K3 is set."));
            "K3"
        }
    };
    draft.set("spec.algorithm.kl.placement", "Loss");
    draft.set("spec.algorithm.kl.estimator", estimator);
    draft.set("spec.algorithm.kl.coefficient", beta);
    if let Some(every) = settings.count("ref_policy_update_freq").filter(|steps| *steps > 0) {
        draft.set("spec.algorithm.referenceSync.everySteps", every);
        draft.set("spec.algorithm.referenceSync.alpha", settings.number("alpha").unwrap_or(0.6));
    }
}
