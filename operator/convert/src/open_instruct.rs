//! open-instruct: `grpo_fast`, `finetune`, `dpo_tune_cache` and their variants.

mod templates;

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::key::{Fate, Outcome, Table};
use crate::launch::Launch;
use crate::rewards::is_hub_name;
use crate::settings::Settings;
use crate::tracking::{self, RunNames};

/// The sections in which settings are at home, by the beginning of their names; `training` has the others.
const HOMES: [(&str, &str); 13] = [
    ("model_", "model"),
    ("tokenizer", "model"),
    ("chat_template", "model"),
    ("lora_", "model"),
    ("use_", "model"),
    ("dataset", "data"),
    ("llm_judge", "rewards"),
    ("code_", "rewards"),
    ("apply_", "rewards"),
    ("vllm_", "rollout"),
    ("stop_", "rollout"),
    ("tool", "rollout"),
    ("rho_", "algorithm"),
];

/// Converts the settings of one launch.
pub(crate) fn convert(
    launch: &Launch,
    table: &Table,
    settings: &Settings,
    name: &str,
) -> (Draft, Vec<Outcome>) {
    let mut draft = Draft::new(name, &HOMES);
    let mut outcomes = table.apply(settings, &mut draft);
    let own = settings.text("model_name_or_path");
    let is_own = |outcome: &&mut Outcome| {
        outcome.key.starts_with("tokenizer_name") && Some(&outcome.value) == own.as_ref()
    };
    outcomes
        .iter_mut()
        .filter(is_own)
        .for_each(|outcome| outcome.fate = Fate::Inherent("it is the model's".to_owned()));
    chat_template(&mut outcomes, &mut draft);
    model(settings, &mut draft);
    datasets(settings, &mut draft);
    let trainer = launch.trainer.as_str();
    if trainer.starts_with("grpo") {
        draft.set("spec.algorithm.kind", "GRPO");
        online(settings, &mut draft);
    } else if trainer.starts_with("dpo") {
        draft.set("spec.algorithm.kind", "DPO");
        preference(settings, &mut draft);
        offline(launch, settings, &mut draft);
    } else {
        let kind = if trainer.starts_with("reward") { "RewardModel" } else { "SFT" };
        draft.set("spec.algorithm.kind", kind);
        offline(launch, settings, &mut draft);
    }
    schedule(settings, &mut draft);
    // -1 keeps all there.
    let kept = settings.count("keep_last_n_checkpoints").filter(|count| *count > 0);
    draft.set_some("spec.checkpoint.keep", kept);
    workers(launch, settings, &mut draft);
    trackers(settings, &mut draft);
    (draft, outcomes)
}

/// `with_tracking` means W&B, unless `report_to` names others.
fn trackers(settings: &Settings, draft: &mut Draft) {
    let names = RunNames {
        project: settings.text("wandb_project_name").or_else(|| settings.text("wandb_project")),
        run: settings.text("run_name").or_else(|| settings.text("exp_name")),
        entity: settings.text("wandb_entity"),
        ..RunNames::default()
    };
    let named = settings.list("report_to");
    let loggers = match settings.is_true("with_tracking") {
        true if named.iter().all(|name| name == "all") => vec!["wandb".to_owned()],
        true => named,
        false => Vec::new(),
    };
    tracking::report_to(&loggers, &names, draft);
}

/// A template that is named, where it has an equal.
fn chat_template(outcomes: &mut [Outcome], draft: &mut Draft) {
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.key == "chat_template_name") {
        if let Some(template) = templates::template(&outcome.value) {
            draft.set("spec.model.chatTemplate", template);
            outcome.fate = Fate::Converted("model.chatTemplate".to_owned());
        }
    }
}

fn model(settings: &Settings, draft: &mut Draft) {
    match settings.text("model_name_or_path") {
        Some(path) if is_hub_name(&path) => {
            draft.set("spec.model.hub.repo", path);
            draft.set_some("spec.model.hub.revision", settings.text("model_revision"));
        }
        Some(path) => draft.set("spec.model.path", path),
        None => draft.remark("model", "model_name_or_path is not set: say `hub.repo` or `path` here."),
    }
    if settings.is_true("use_lora") {
        draft.set("spec.model.lora.rank", settings.count("lora_rank").unwrap_or(64));
        draft.set("spec.model.lora.alpha", settings.number("lora_alpha").unwrap_or(16.0));
        draft.set("spec.model.lora.dropout", settings.number("lora_dropout").unwrap_or(0.1));
        let saved = settings.list("lora_modules_to_save");
        draft.set_some("spec.model.lora.modulesToSave", Some(saved).filter(|names| !names.is_empty()));
    }
}

/// `name share name share ..`, where a share up to 1 with a point is a part of the rows, else their number.
fn datasets(settings: &Settings, draft: &mut Draft) {
    let mut all = mixture(settings, "dataset_mixer_list", "dataset_mixer_list_splits", "train", draft);
    all.extend(mixture(settings, "mixer_list", "mixer_list_splits", "train", draft));
    if let Some(name) = settings.text("dataset_name").filter(|_| all.is_empty()) {
        all.push(json!({"hub": {"repo": name}}));
    }
    let held_out =
        mixture(settings, "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", "test", draft);
    all.extend(held_out.into_iter().map(|mut dataset| {
        dataset["heldOut"] = Value::Bool(true);
        dataset
    }));
    if all.is_empty() {
        draft.remark("data", "dataset_mixer_list is not set: say `datasets` here.");
    } else {
        draft.set("spec.data.datasets", all);
    }
}

fn mixture(settings: &Settings, list: &str, splits: &str, default: &str, draft: &mut Draft) -> Vec<Value> {
    // A list in one variable is one word there, too.
    let words = settings.list(list).join(" ");
    let words: Vec<_> = words.split_whitespace().collect();
    let splits = settings.list(splits);
    let pairs = words.chunks(2).enumerate();
    pairs
        .map(|(index, pair)| {
            let share = pair.get(1).copied().unwrap_or("1.0");
            if share != "1.0" {
                draft
                    .remark("data", format!("{list} takes {share} of {}: all rows are taken here.", pair[0]));
            }
            let split = splits.get(index).or_else(|| splits.first()).map_or(default, String::as_str);
            json!({"hub": {"repo": pair[0], "split": split}})
        })
        .collect()
}

fn online(settings: &Settings, draft: &mut Draft) {
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
    draft.set("spec.algorithm.loss.clipLow", settings.number("clip_lower").unwrap_or(0.2));
    draft.set("spec.algorithm.loss.clipHigh", settings.number("clip_higher").unwrap_or(0.272));
    let policy = if settings.text("loss_fn").as_deref() == Some("cispo") { "Cispo" } else { "Vanilla" };
    draft.set("spec.algorithm.loss.policy", policy);
    aggregation(settings, draft);
    kl(settings, draft);
    let stop = settings.list("stop_strings");
    draft.set_some("spec.rollout.stop", Some(stop).filter(|texts| !texts.is_empty()));
    let divides = settings.text("advantage_normalization_type").as_deref() == Some("standard");
    draft.set("spec.algorithm.advantage.normalizeByStd", divides);
    if settings.is_true("active_sampling") {
        draft.set("spec.algorithm.dynamicSampling.metric", "Score");
    }
    rewards(settings, draft);
}

fn aggregation(settings: &Settings, draft: &mut Draft) {
    let denominator = settings.text("loss_denominator").unwrap_or_else(|| "token".to_owned());
    match denominator.parse::<f64>() {
        Ok(tokens) => {
            draft.set("spec.algorithm.loss.aggregation", "SequenceMeanTokenSumNorm");
            draft.set("spec.algorithm.loss.normalizationTokens", json!(tokens.round()));
        }
        Err(_) => draft.set("spec.algorithm.loss.aggregation", "TokenMean"),
    }
}

fn kl(settings: &Settings, draft: &mut Draft) {
    let beta = settings.number("beta").unwrap_or(0.05);
    let has_reference = settings.get("load_ref_policy").is_none() || settings.is_true("load_ref_policy");
    if beta == 0.0 || !has_reference {
        draft.set("spec.algorithm.kl.placement", "None");
        return;
    }
    // 0: the difference, 1: half its square, 2: exp(-d) - 1 + d.
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

/// Verifiers by the column `dataset`, of which a script shows the names of its data sets alone.
fn rewards(settings: &Settings, draft: &mut Draft) {
    let weight = settings.number("verification_reward").unwrap_or(10.0);
    let names = settings.list("dataset_mixer_list").join(" ").to_ascii_lowercase();
    let (gsm8k, math) = (names.contains("gsm8k"), names.contains("math"));
    let kind = if gsm8k && !math { "Gsm8k" } else { "Math" };
    if !gsm8k && !math {
        draft.remark(
            "rewards",
            "open-instruct chooses a verifier by the column dataset: Math is a guess, see docs/rewards.md.",
        );
    }
    let mut functions = vec![json!({"name": kind.to_ascii_lowercase(), "kind": kind, "weight": weight})];
    if settings.is_true("apply_r1_style_format_reward") || settings.is_true("additive_format_reward") {
        let pattern = r"(?s)^.*?</think>\s*<answer>.*?</answer>$";
        functions.push(json!({"name": "format", "kind": "Format", "pattern": pattern}));
    }
    draft.set("spec.rewards.functions", functions);
    draft.set("spec.data.dataSourceKey", "dataset");
}

fn preference(settings: &Settings, draft: &mut Draft) {
    let loss = settings.text("loss_type").unwrap_or_else(|| "dpo_norm".to_owned());
    draft.set("spec.algorithm.preference.beta", settings.number("beta").unwrap_or(5.0));
    match loss.trim_start_matches("DPOLossType.") {
        "dpo" => draft.set("spec.algorithm.preference.loss", "Sigmoid"),
        "dpo_norm" => draft.set("spec.algorithm.preference.loss", "SigmoidNorm"),
        "simpo" => draft.set("spec.algorithm.kind", "SimPO"),
        other => draft.remark(
            "algorithm",
            format!("loss_type={other} has no equal: Sigmoid and SigmoidNorm are there."),
        ),
    }
}

fn offline(launch: &Launch, settings: &Settings, draft: &mut Draft) {
    let of_device = settings.count("per_device_train_batch_size").unwrap_or(8);
    let accumulated = settings.count("gradient_accumulation_steps").unwrap_or(1).max(1);
    draft.set(
        "spec.training.promptsPerStep",
        of_device.saturating_mul(accumulated).saturating_mul(launch.processes.unwrap_or(1).max(1)),
    );
    if let Some(length) = settings.count("max_seq_length") {
        draft.set("spec.data.maxPromptTokens", length / 2);
        draft.set("spec.rollout.maxCompletionTokens", length - length / 2);
        draft.remark(
            "data",
            format!("max_seq_length={length} holds prompt and answer: its halves are a guess, change them."),
        );
    }
    match settings.count("max_train_steps").or_else(|| settings.count("num_training_steps")) {
        Some(steps) => draft.set("spec.training.steps", steps),
        None => {
            let epochs = settings.count("num_train_epochs").or_else(|| settings.count("num_epochs"));
            draft.set("spec.training.epochs", epochs.unwrap_or(2));
        }
    }
    draft.set("spec.training.evaluateEvery", 0);
}

fn schedule(settings: &Settings, draft: &mut Draft) {
    let kind = match settings.text("lr_scheduler_type").as_deref() {
        None | Some("linear") => "Linear",
        Some("cosine") => "Cosine",
        Some("constant") => "Constant",
        Some(other) => {
            draft.remark("training", format!("lr_scheduler_type={other} has no equal: Linear is set."));
            "Linear"
        }
    };
    draft.set("spec.training.schedule.kind", kind);
    draft.set("spec.training.optimizer.weightDecay", settings.number("weight_decay").unwrap_or(0.0));
    let ratio = settings.number("warmup_ratio").filter(|ratio| *ratio > 0.0);
    draft.set_some("spec.training.schedule.warmupRatio", ratio);
    let steps = settings.count("warm_up_steps").filter(|steps| *steps > 0 && ratio.is_none());
    draft.set_some("spec.training.schedule.warmupSteps", steps);
}

/// Learners and engines share the GPUs here.
fn workers(launch: &Launch, settings: &Settings, draft: &mut Draft) {
    let learners: Vec<u64> =
        settings.list("num_learners_per_node").iter().filter_map(|count| count.parse().ok()).collect();
    let machines = launch.machines.unwrap_or(1).max(learners.len() as u64).max(1);
    let of_machine = learners.first().copied().or(launch.processes.map(|all| all / machines));
    let of_machine = of_machine.unwrap_or(1).max(1);
    draft.set("spec.workers.count", machines);
    draft.set("spec.workers.ranksPerWorker", of_machine);
    draft.set("spec.workers.device", "Cuda");
    let sp = settings.count("sequence_parallel_size").unwrap_or(1).max(1);
    let tp = settings.count("tensor_parallel_degree").unwrap_or(1).max(1);
    let shard = machines.saturating_mul(of_machine) / sp.saturating_mul(tp);
    draft.set_some("spec.workers.mesh.dpShard", Some(shard).filter(|ranks| *ranks > 1));
    draft.set_some("spec.workers.mesh.sp", Some(sp).filter(|ranks| *ranks > 1));
    draft.set_some("spec.workers.mesh.tp", Some(tp).filter(|ranks| *ranks > 1));
    let tp = settings.count("vllm_tensor_parallel_size").filter(|size| *size > 1);
    draft.set_some("spec.workers.mesh.rolloutTp", tp);
}
