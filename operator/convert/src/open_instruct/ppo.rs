//! `ppo_vllm_thread_ray_gtrl` of earlier versions: PPO with a critic, and the KL in the reward.

use super::rewards;
use crate::draft::Draft;
use crate::settings::Settings;

/// Sets the fields of jobs that sample completions. Batch sizes are per device.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let count = |key: &str, default: u64| settings.count(key).unwrap_or(default);
    let devices = settings.list("actor_num_gpus_per_node");
    let devices: u64 = devices.iter().filter_map(|devices| devices.parse::<u64>().ok()).sum();
    let devices = devices.max(1);
    let samples = count("number_samples_per_prompt", 1).max(1);
    let prompts = count("local_rollout_batch_size", 64).saturating_mul(devices).max(1);
    let per_update = count("local_mini_batch_size", 64).saturating_mul(devices) / samples;
    draft.set("spec.training.promptsPerStep", prompts);
    draft.set("spec.training.promptsPerUpdate", per_update.clamp(1, prompts));
    draft.set("spec.training.epochsPerBatch", count("num_epochs", 4));
    let episodes = count("total_episodes", 100_000);
    draft.set("spec.training.steps", (episodes / prompts.saturating_mul(samples)).max(1));
    draft.set("spec.rollout.samplesPerPrompt", samples);
    draft.set("spec.rollout.maxCompletionTokens", count("response_length", 53));
    draft.set("spec.rollout.temperature", settings.number("temperature").unwrap_or(0.7));
    draft.set("spec.data.maxPromptTokens", count("max_prompt_token_length", 256));
    advantage(settings, draft);
    kl(settings, draft);
    rewards::finish(settings, draft);
    if settings.get("async_mode").is_none() || settings.is_true("async_mode") {
        draft.remark(
            "rollout",
            "async_mode, the default there, has no equal: sampling and training take turns, on the newest weights.",
        );
    }
}

fn advantage(settings: &Settings, draft: &mut Draft) {
    let number = |key: &str, default: f64| settings.number(key).unwrap_or(default);
    draft.set("spec.algorithm.advantage.gamma", number("gamma", 1.0));
    draft.set("spec.algorithm.advantage.lambda", number("lam", 0.95));
    draft.set("spec.algorithm.loss.clipLow", number("cliprange", 0.2));
    draft.set("spec.algorithm.loss.clipHigh", number("cliprange", 0.2));
    draft.set("spec.algorithm.critic.valueClip", number("cliprange_value", 0.2));
    // The critic has the actor's learning rate; its loss has the factor vf_coef, which changes no step of
    // AdamW.
    draft.set("spec.algorithm.critic.learningRate", number("learning_rate", super::defaults::LEARNING_RATE));
    if settings.is_true("whiten_rewards") {
        draft.remark("algorithm", "whiten_rewards has no equal: advantages are whitened, rewards are not.");
    }
}

fn kl(settings: &Settings, draft: &mut Draft) {
    let beta = settings.number("beta").unwrap_or(0.05);
    if beta == 0.0 {
        return draft.set("spec.algorithm.kl.placement", "None");
    }
    let estimator = match settings.text("kl_estimator").as_deref() {
        Some("kl2") => "K2",
        Some("kl3") => "K3",
        _ => "K1",
    };
    draft.set("spec.algorithm.kl.placement", "Reward");
    draft.set("spec.algorithm.kl.estimator", estimator);
    draft.set("spec.algorithm.kl.coefficient", beta);
}
