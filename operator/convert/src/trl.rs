//! TRL: `trl grpo` and its scripts, with the settings of 1.x.

mod loss;
mod mixture;
mod precision;
mod preference;
mod rewards;
mod sampled;
mod schedule;

use serde_json::{Value, json};

use crate::adapter;
use crate::draft::Draft;
use crate::key::Table;
use crate::launch::Launch;
use crate::outcome::Outcome;
use crate::rewards::is_hub_name;
use crate::settings::Settings;
use crate::tracking::{self, RunNames};

/// Kinds of jobs by the beginning of a TRL script's name; longer names come first.
const KINDS: [(&str, &str); 15] = [
    ("online_dpo", "OnlineDPO"),
    ("dpo_online", "OnlineDPO"),
    ("reward", "RewardModel"),
    ("gspo", "GSPO"),
    ("grpo", "GRPO"),
    ("gmpo", "GRPO"),
    ("rloo", "RLOO"),
    ("orpo", "ORPO"),
    ("cpo", "CPO"),
    ("dpo", "DPO"),
    ("kto", "KTO"),
    ("mpo", "DPO"),
    ("ppo", "PPO"),
    ("prm", "ProcessReward"),
    ("sft", "SFT"),
];

/// TRL's coefficient of the loss that balances the routers of a mixture of experts.
const ROUTER_AUX_LOSS_COEF: f64 = 0.001;
/// Parts of the names of mixtures of experts, in lower case. Other names give the size of the active
/// parameters (`A3B`).
const EXPERTS: [&str; 5] = ["moe", "mixtral", "gpt-oss", "deepseek-v2", "deepseek-v3"];

/// Prefixes of settings with the section to which they belong; all others belong to `training`.
const HOMES: [(&str, &str); 16] = [
    ("model_", "model"),
    ("lora_", "model"),
    ("use_peft", "model"),
    ("use_dora", "model"),
    ("load_in", "model"),
    ("use_bnb", "model"),
    ("bnb_", "model"),
    ("trust", "model"),
    ("dataset", "data"),
    ("max_length", "data"),
    ("truncation", "data"),
    ("reward", "rewards"),
    ("vllm_", "rollout"),
    ("generation", "rollout"),
    ("loss_", "algorithm"),
    ("beta", "algorithm"),
];

/// Converts the settings of one launch.
pub(crate) fn convert(
    launch: &Launch,
    table: &Table,
    settings: &Settings,
    name: &str,
) -> (Draft, Vec<Outcome>) {
    let mut draft = Draft::new(name, &HOMES);
    let outcomes = table.apply(settings, &mut draft);
    let kind =
        KINDS.iter().find(|(beginning, _)| launch.trainer.starts_with(beginning)).map(|(_, kind)| *kind);
    if kind.is_none() {
        let trainer = &launch.trainer;
        draft.remark("algorithm", format!("the trainer {trainer} has no equal: GRPO is a guess."));
    }
    let kind = kind.unwrap_or("GRPO");
    draft.set("spec.algorithm.kind", kind);
    model(settings, &mut draft);
    datasets(settings, &mut draft);
    let updates = match kind {
        "GRPO" | "GSPO" | "RLOO" | "OnlineDPO" | "PPO" => online(launch, settings, kind, &mut draft),
        _ => offline(launch, settings, kind, &mut draft),
    };
    length(settings, updates, &mut draft);
    reference_sync(settings, updates, &mut draft);
    schedule::finish(settings, kind, updates, &mut draft);
    router(settings, kind, &mut draft);
    frequencies(settings, updates, &mut draft);
    gradient_norm(settings, &mut draft);
    best(settings, kind, &mut draft);
    workers(launch, settings, &mut draft);
    precision::finish(settings, &mut draft);
    trackers(settings, &mut draft);
    (draft, outcomes)
}

/// Sets the coefficient of the router loss, which TRL adds by default. A manifest refuses it for a model
/// without experts, which only the model's name shows.
fn router(settings: &Settings, kind: &str, draft: &mut Draft) {
    let has_default = matches!(kind, "SFT" | "GRPO" | "GSPO" | "RLOO" | "DPO" | "KTO");
    let model = draft.text("model.hub.repo").or_else(|| draft.text("model.path")).unwrap_or_default();
    if has_default && settings.get("router_aux_loss_coef").is_none() && has_experts(&model) {
        draft.set("spec.training.routerAuxLossCoef", ROUTER_AUX_LOSS_COEF);
    }
}

/// Whether the name of a model is that of a mixture of experts, such as `Qwen3-30B-A3B`.
fn has_experts(model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    let is_active_size = |word: &str| {
        let size = word.strip_prefix('a').and_then(|rest| rest.strip_suffix('b'));
        size.is_some_and(|size| !size.is_empty() && size.bytes().all(|letter| letter.is_ascii_digit()))
    };
    EXPERTS.iter().any(|name| model.contains(name)) || model.split(['-', '/']).any(is_active_size)
}

/// Sets the clip of gradients: TRL clips none without a positive norm.
fn gradient_norm(settings: &Settings, draft: &mut Draft) {
    if settings.is_null("max_grad_norm") {
        draft.set("spec.training.maxGradNorm", 0.0);
    }
}

fn trackers(settings: &Settings, draft: &mut Draft) {
    let names = RunNames {
        project: settings.text("project"),
        run: settings.text("run_name"),
        entity: None,
        trackio: settings.text("trackio_space_id").map(|id| tracking::space(&id)),
    };
    tracking::report_to(&settings.list("report_to"), &names, draft);
}

fn model(settings: &Settings, draft: &mut Draft) {
    // PPO's actor is a model that was trained on demonstrations.
    match settings.text("sft_model_path").or_else(|| settings.text("model_name_or_path")) {
        Some(path) if is_hub_name(&path) || !path.contains('/') => {
            draft.set("spec.model.hub.repo", path);
            draft.set_some("spec.model.hub.revision", settings.text("model_revision"));
        }
        Some(path) => draft.set("spec.model.path", path),
        None => draft.remark("model", "model_name_or_path is not set: say `hub.repo` or `path` here."),
    }
    adapter::quantization(settings, draft);
    if settings.is_true("use_peft") {
        lora(settings, draft);
    }
}

fn lora(settings: &Settings, draft: &mut Draft) {
    draft.set("spec.model.lora.rank", settings.count("lora_r").unwrap_or(16));
    draft.set("spec.model.lora.alpha", settings.number("lora_alpha").unwrap_or(32.0));
    draft.set("spec.model.lora.dropout", settings.number("lora_dropout").unwrap_or(0.05));
    let parameters = Some(settings.list("lora_target_parameters")).filter(|names| !names.is_empty());
    match settings.list("lora_target_modules") {
        // PEFT chooses by the model's type; the choice is the same for all families that it knows.
        names if names.is_empty() && parameters.is_none() => {
            draft.set("spec.model.lora.targetModules", json!(["q_proj", "v_proj"]));
        }
        names => adapter::target(names, draft),
    }
    draft.set_some("spec.model.lora.targetParameters", parameters);
    let saved = settings.list("lora_modules_to_save");
    draft.set_some("spec.model.lora.modulesToSave", Some(saved).filter(|names| !names.is_empty()));
    match settings.text("init_lora_weights").as_deref() {
        None | Some("true") => {}
        Some("gaussian") => draft.set("spec.model.lora.init", "Gaussian"),
        Some("orthogonal") => draft.set("spec.model.lora.init", "Orthogonal"),
        Some(other) => {
            draft.remark("model", format!("init_lora_weights={other} has no equal: say `lora.init` here."));
        }
    }
    if settings.is_true("use_rslora") {
        draft.set("spec.model.lora.rankStabilized", true);
    }
    if settings.is_true("use_dora") {
        draft.set("spec.model.lora.dora", true);
    }
}

fn datasets(settings: &Settings, draft: &mut Draft) {
    for (name, value) in settings.below("chat_template_kwargs.") {
        draft.set(&format!("spec.data.templateVariables.{name}"), value.clone());
    }
    let variables = settings.get("chat_template_kwargs").filter(|variables| **variables != json!({}));
    draft.set_some("spec.data.templateVariables", variables.cloned());
    if let Some(datasets) = mixture::datasets(settings, draft) {
        if evaluates(settings) {
            draft.remark(
                "data",
                "the mixture has no held-out rows: say a data set with `heldOut: true` here.",
            );
        }
        return draft.set("spec.data.datasets", datasets);
    }
    let Some(name) = settings.text("dataset_name") else {
        draft.remark("data", "dataset_name is not set: say `datasets` here.");
        return;
    };
    let dataset = |split: String, is_held_out: bool| {
        let mut hub = json!({"repo": name, "split": split});
        if let Some(config) = settings.text("dataset_config") {
            hub["config"] = Value::from(config);
        }
        if is_held_out { json!({"hub": hub, "heldOut": true}) } else { json!({"hub": hub}) }
    };
    let split = |key: &str, default: &str| settings.text(key).unwrap_or_else(|| default.to_owned());
    let mut datasets = vec![dataset(split("dataset_train_split", "train"), false)];
    if evaluates(settings) {
        datasets.push(dataset(split("dataset_test_split", "test"), true));
    }
    draft.set("spec.data.datasets", datasets);
}

fn evaluates(settings: &Settings) -> bool {
    let strategy = settings.text("eval_strategy").or_else(|| settings.text("evaluation_strategy"));
    strategy.map_or_else(|| settings.get("eval_steps").is_some(), |strategy| strategy != "no")
}

/// Returns the number of sequences per optimizer update.
fn sequences(launch: &Launch, settings: &Settings) -> u64 {
    let of_device = settings.count("per_device_train_batch_size").unwrap_or(8);
    let accumulated = settings.count("gradient_accumulation_steps").unwrap_or(1).max(1);
    of_device.saturating_mul(accumulated).saturating_mul(devices(launch, settings))
}

fn devices(launch: &Launch, settings: &Settings) -> u64 {
    // accelerate's number of processes is that of all machines.
    launch.processes.or_else(|| settings.count("num_processes")).unwrap_or(1).max(1)
}

/// Sets the fields of jobs that sample completions. Returns the number of updates per step.
fn online(launch: &Launch, settings: &Settings, kind: &str, draft: &mut Draft) -> u64 {
    if matches!(kind, "PPO" | "OnlineDPO") {
        return of_prompts(launch, settings, kind, draft);
    }
    let group = settings.count("num_generations").unwrap_or(if kind == "RLOO" { 2 } else { 8 }).max(1);
    let per_update = (sequences(launch, settings) / group).max(1);
    let of_device = settings.count("per_device_train_batch_size").unwrap_or(8);
    let generated = settings
        .count("steps_per_generation")
        .map(|steps| steps.saturating_mul(of_device).saturating_mul(devices(launch, settings)))
        .or_else(|| settings.count("generation_batch_size"));
    let per_step = generated.map_or(per_update, |sequences| (sequences / group).max(1));
    draft.set("spec.rollout.samplesPerPrompt", group);
    draft.set("spec.training.promptsPerStep", per_step);
    draft.set("spec.training.promptsPerUpdate", per_update.min(per_step));
    draft.set(
        "spec.rollout.maxCompletionTokens",
        settings.count("max_completion_length").or_else(|| settings.count("max_new_tokens")).unwrap_or(512),
    );
    let rounds = settings.count("num_iterations").unwrap_or(1).max(1);
    if kind != "RLOO" {
        loss::finish(settings, launch.trainer.starts_with("gmpo"), draft);
    }
    kl(settings, kind, draft);
    sampled::finish(settings, kind, draft);
    prompts(settings, draft);
    rewards::finish(settings, draft);
    per_step.div_ceil(per_update).saturating_mul(rounds)
}

/// Sets the fields of PPO and online DPO, whose batches count prompts. Returns the number of updates per
/// step, as TRL counts them.
fn of_prompts(launch: &Launch, settings: &Settings, kind: &str, draft: &mut Draft) -> u64 {
    let (samples, length) = if kind == "PPO" { (1, 53) } else { (2, 64) };
    let per_update = sequences(launch, settings).max(1);
    let parts = settings.count("num_mini_batches").filter(|_| kind == "PPO").unwrap_or(1).max(1);
    draft.set("spec.rollout.samplesPerPrompt", samples);
    draft.set("spec.training.promptsPerStep", per_update.saturating_mul(parts));
    draft.set("spec.training.promptsPerUpdate", per_update);
    let keys = ["max_new_tokens", "response_length", "max_completion_length"];
    let given = keys.iter().find_map(|key| settings.count(key));
    draft.set("spec.rollout.maxCompletionTokens", given.unwrap_or(length));
    kl(settings, kind, draft);
    sampled::finish(settings, kind, draft);
    prompts(settings, draft);
    rewards::finish(settings, draft);
    1
}

/// Sets the longest prompt; TRL before 1.0 cut a longer one at its beginning.
fn prompts(settings: &Settings, draft: &mut Draft) {
    if let Some(length) = settings.count("max_prompt_length") {
        draft.set("spec.data.maxPromptTokens", length);
        draft.set("spec.data.overlongPrompts", "TruncateLeft");
    }
}

fn kl(settings: &Settings, kind: &str, draft: &mut Draft) {
    let default = match kind {
        "RLOO" | "PPO" => 0.05,
        "OnlineDPO" => 0.1,
        _ => 0.0,
    };
    let key = if kind == "PPO" { "kl_coef" } else { "beta" };
    let beta = settings.number(key).unwrap_or(default);
    match kind {
        "OnlineDPO" => draft.set("spec.algorithm.preference.beta", beta),
        _ if beta == 0.0 => draft.set("spec.algorithm.kl.placement", "None"),
        _ => {
            let placement = if matches!(kind, "RLOO" | "PPO") { "Reward" } else { "Loss" };
            draft.set("spec.algorithm.kl.placement", placement);
            draft.set("spec.algorithm.kl.estimator", if placement == "Loss" { "K3" } else { "K1" });
            draft.set("spec.algorithm.kl.coefficient", beta);
        }
    }
}

/// Sets the fields of jobs with completions in the data. Returns the number of updates per step.
fn offline(launch: &Launch, settings: &Settings, kind: &str, draft: &mut Draft) -> u64 {
    draft.set("spec.training.promptsPerStep", sequences(launch, settings));
    let max_length =
        settings.count("max_length").or_else(|| settings.count("max_seq_length")).unwrap_or(1024);
    lengths(settings, max_length, draft);
    if kind == "SFT" {
        demonstrations(settings, draft);
    } else if kind == "RewardModel" {
        let coefficient = settings.number("center_rewards_coefficient").unwrap_or(0.0);
        draft.set("spec.algorithm.rewardModel.centeringCoefficient", coefficient);
    } else if kind == "ProcessReward" {
        draft.set_some("spec.algorithm.processReward.stepSeparator", settings.text("step_separator"));
        if settings.is_true("train_on_last_step_only") {
            draft.set("spec.algorithm.processReward.lastStepOnly", true);
        }
    } else {
        draft.set("spec.algorithm.preference.beta", settings.number("beta").unwrap_or(0.1));
        preference::finish(settings, kind, draft);
    }
    1
}

/// Sets the lengths of prompt and completion, which share `max_length`.
fn lengths(settings: &Settings, max_length: u64, draft: &mut Draft) {
    let part = |key: &str| settings.count(key).filter(|tokens| (1..max_length).contains(tokens));
    let (prompt, completion) = (part("max_prompt_length"), part("max_completion_length"));
    let (longest_prompt, longest_completion) = match (prompt, completion) {
        (Some(prompt), Some(completion)) => (prompt, completion),
        (Some(prompt), None) => (prompt, max_length - prompt),
        (None, Some(completion)) => (max_length - completion, completion),
        (None, None) => {
            let text = format!(
                "max_length={max_length} holds prompt and completion: its halves are a guess, change them."
            );
            draft.remark("data", text);
            (max_length / 2, max_length - max_length / 2)
        }
    };
    draft.set("spec.data.maxPromptTokens", longest_prompt);
    draft.set("spec.rollout.maxCompletionTokens", longest_completion);
}

/// Sets what supervised training learns. TRL learns completions of rows that have one, and all tokens of
/// texts and conversations.
fn demonstrations(settings: &Settings, draft: &mut Draft) {
    let says = |key: &str| settings.get(key).map(crate::settings::is_true);
    match (says("assistant_only_loss"), says("completion_only_loss")) {
        (Some(true), _) => {}
        (_, Some(false)) => draft.set("spec.data.trainOn", "Everything"),
        _ => draft.remark(
            "data",
            "without assistant_only_loss, TRL learns all tokens of texts and conversations, here those of the \
             assistant alone are learned: trainOn: Everything learns all.",
        ),
    }
    match settings.text("loss_type").as_deref() {
        None | Some("nll" | "chunked_nll") => {}
        Some("dft") => {
            draft
                .remark("algorithm", "loss_type=dft weighs tokens by their probability, which has no equal.");
        }
        Some(other) => {
            draft.remark(
                "algorithm",
                format!("loss_type={other} has no equal: SFT learns by the likelihood."),
            );
        }
    }
}

/// Sets the length of the training. TRL counts updates; our steps have `updates` of them.
fn length(settings: &Settings, updates: u64, draft: &mut Draft) {
    let steps = settings.count("max_steps").filter(|steps| *steps > 0).map(|steps| steps.div_ceil(updates));
    let batch = draft.count("training.promptsPerStep").unwrap_or(1).max(1);
    let episodes = settings.count("total_episodes").map(|episodes| episodes.div_ceil(batch));
    match steps.or(episodes.filter(|_| draft.text("algorithm.kind").as_deref() == Some("PPO"))) {
        Some(steps) => draft.set("spec.training.steps", steps),
        None => {
            let epochs = settings.number("num_train_epochs").unwrap_or(3.0);
            if epochs.fract() != 0.0 {
                draft
                    .remark("training", format!("num_train_epochs={epochs} is not whole: it is rounded up."));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of epochs"
            )]
            draft.set("spec.training.epochs", epochs.ceil().max(1.0) as u64);
        }
    }
}

/// Sets the update of the reference by the actor. TRL's interval counts updates; our steps have `updates` of
/// them.
fn reference_sync(settings: &Settings, updates: u64, draft: &mut Draft) {
    if settings.is_true("sync_ref_model") {
        let every = settings.count("ref_model_sync_steps").unwrap_or(512);
        draft.set("spec.algorithm.referenceSync.everySteps", every.div_ceil(updates).max(1));
        let alpha = settings.number("ref_model_mixup_alpha").unwrap_or(0.6);
        draft.set("spec.algorithm.referenceSync.alpha", alpha);
    }
}

/// Sets how often held-out rows are measured and checkpoints saved. TRL counts updates; our steps have
/// `updates` of them.
fn frequencies(settings: &Settings, updates: u64, draft: &mut Draft) {
    let steps = |key: &str| settings.count(key).map(|every| every.div_ceil(updates));
    let by_epoch = |key: &str| settings.text(key).is_some_and(|strategy| strategy == "epoch");
    if !evaluates(settings) {
        draft.set("spec.training.evaluateEvery", 0);
    } else if by_epoch("eval_strategy") || by_epoch("evaluation_strategy") {
        draft.remark("training", "eval_strategy=epoch has no equal: say evaluateEvery in steps.");
    } else {
        let every = steps("eval_steps").or_else(|| steps("logging_steps"));
        draft.set_some("spec.training.evaluateEvery", every);
    }
    match settings.text("save_strategy").as_deref() {
        Some("no") => draft.set("spec.checkpoint.everySteps", 0),
        Some("epoch" | "best") => {
            let text = "save_strategy counts no steps, which has no equal: say everySteps in steps.";
            draft.remark("checkpoint", text);
        }
        _ => draft.set_some("spec.checkpoint.everySteps", steps("save_steps")),
    }
}

/// Keeps the checkpoint with the highest held-out reward; the lowest loss, TRL's default, is not supported.
fn best(settings: &Settings, kind: &str, draft: &mut Draft) {
    if !settings.is_true("load_best_model_at_end") {
        return;
    }
    let metric = settings.text("metric_for_best_model").unwrap_or_else(|| "loss".to_owned());
    let is_reward = matches!(metric.trim_start_matches("eval_"), "reward" | "rewards" | "reward_mean");
    if !matches!(kind, "GRPO" | "GSPO" | "RLOO" | "PPO") {
        let text = format!(
            "load_best_model_at_end has no equal with {kind}: checkpoint.keepBest compares rewards, not {metric}."
        );
        return draft.remark("checkpoint", text);
    }
    draft.set("spec.checkpoint.keepBest", true);
    if !is_reward {
        let text = format!(
            "load_best_model_at_end chooses by {metric}: keepBest keeps the checkpoint of the highest held-out reward."
        );
        draft.remark("checkpoint", text);
    }
    if !evaluates(settings) {
        draft.remark("checkpoint", "keepBest compares held-out rewards: the script evaluates nothing.");
    }
}

fn workers(launch: &Launch, settings: &Settings, draft: &mut Draft) {
    let ranks = devices(launch, settings);
    let machines = launch.machines.or_else(|| settings.count("num_machines")).unwrap_or(1).max(1);
    if launch.processes.is_none() && settings.get("num_processes").is_none() {
        draft.remark(
            "training",
            "the script does not say how many processes it starts: a batch is that of one device.",
        );
    }
    draft.set("spec.workers.count", machines);
    draft.set("spec.workers.ranksPerWorker", (ranks / machines).max(1));
    let is_cpu = settings.is_true("use_cpu") || settings.is_true("no_cuda");
    draft.set("spec.workers.device", if is_cpu { "Cpu" } else { "Cuda" });
    if ranks > 1 {
        draft.set("spec.workers.mesh.dpShard", ranks);
    }
    let tp = settings.count("vllm_tensor_parallel_size").filter(|size| *size > 1);
    draft.set_some("spec.workers.mesh.rolloutTp", tp);
}
