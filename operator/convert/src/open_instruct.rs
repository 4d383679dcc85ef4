//! open-instruct: `grpo_fast`, `finetune`, `dpo_tune_cache` and their variants.

mod defaults;
mod frequencies;
mod grpo;
mod ppo;
mod rewards;
mod templates;

use serde_json::{Value, json};

use crate::adapter;
use crate::draft::Draft;
use crate::key::Table;
use crate::launch::Launch;
use crate::outcome::{Fate, Outcome};
use crate::rewards::is_hub_name;
use crate::settings::{Settings, text_of};
use crate::tracking::{self, RunNames};
use defaults::Defaults;

/// Prefixes of settings with the section to which they belong; all others belong to `training`.
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
    tokenizer(settings, &mut outcomes, &mut draft);
    chat_template(&mut outcomes, &mut draft);
    model(settings, &mut draft);
    datasets(settings, &mut draft);
    let trainer = launch.trainer.as_str();
    let defaults = defaults::of(trainer);
    if trainer.starts_with("grpo") {
        draft.set("spec.algorithm.kind", "GRPO");
        grpo::finish(settings, &mut draft);
    } else if trainer.starts_with("ppo") {
        draft.set("spec.algorithm.kind", "PPO");
        ppo::finish(settings, &mut draft);
    } else if trainer.starts_with("dpo") {
        draft.set("spec.algorithm.kind", "DPO");
        preference(settings, &mut draft);
        offline(launch, settings, &defaults, &mut draft);
    } else {
        let kind = if trainer.starts_with("reward") { "RewardModel" } else { "SFT" };
        draft.set("spec.algorithm.kind", kind);
        offline(launch, settings, &defaults, &mut draft);
    }
    schedule(settings, &defaults, &mut draft);
    frequencies::finish(settings, &mut draft);
    // In open-instruct, -1 keeps all checkpoints.
    let kept = settings.count("keep_last_n_checkpoints").filter(|count| *count > 0);
    draft.set_some("spec.checkpoint.keep", kept);
    workers(launch, settings, &mut draft);
    trackers(settings, &mut draft);
    (draft, outcomes)
}

/// Sets the trackers: `with_tracking` means W&B, unless `report_to` names others.
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

/// Sets a tokenizer in a folder of its own; one of the hub has no equivalent, unless it is the model's.
fn tokenizer(settings: &Settings, outcomes: &mut [Outcome], draft: &mut Draft) {
    let model = settings.text("model_name_or_path");
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.key.starts_with("tokenizer_name")) {
        if Some(&outcome.value) == model.as_ref() {
            outcome.fate = Fate::Inherent("it is the model's".to_owned());
        } else if outcome.value.starts_with(['/', '.']) {
            draft.set("spec.model.tokenizer.path", outcome.value.as_str());
            outcome.fate = Fate::Converted("model.tokenizer.path".to_owned());
        }
    }
}

/// Sets the chat template that a script names, if it has an equivalent.
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
    if settings.is_true("use_lora") || settings.is_true("use_peft") {
        let rank = settings.count("lora_rank").or_else(|| settings.count("lora_r"));
        draft.set("spec.model.lora.rank", rank.unwrap_or(64));
        draft.set("spec.model.lora.alpha", settings.number("lora_alpha").unwrap_or(16.0));
        draft.set("spec.model.lora.dropout", settings.number("lora_dropout").unwrap_or(0.1));
        adapter::target(settings.list("lora_target_modules"), draft);
        quantization(settings, draft);
        let saved = settings.list("lora_modules_to_save");
        draft.set_some("spec.model.lora.modulesToSave", Some(saved).filter(|names| !names.is_empty()));
    }
}

/// Sets the quantized weights below an adapter; `use_qlora` is nf4 with scales that are quantized, too.
fn quantization(settings: &Settings, draft: &mut Draft) {
    adapter::quantization(settings, draft);
    if settings.is_true("use_qlora") {
        draft.set("spec.model.quantization.format", "Nf4");
        draft.set("spec.model.quantization.doubleQuantization", true);
    }
}

/// Sets data sets from `name share name share ..`, where a share with a decimal point up to 1 is a fraction
/// of the rows, any other the number of rows.
fn datasets(settings: &Settings, draft: &mut Draft) {
    let mut all = mixture(settings, "dataset_mixer_list", "dataset_mixer_list_splits", "train", draft);
    all.extend(mixture(settings, "mixer_list", "mixer_list_splits", "train", draft));
    all.extend(mixer(settings, "dataset_mixer", "dataset_train_splits", "train", draft));
    if let Some(name) = settings.text("dataset_name").filter(|_| all.is_empty()) {
        let mut hub = json!({ "repo": name });
        if let Some(config) = settings.text("dataset_config_name") {
            hub["config"] = config.into();
        }
        all.push(json!({ "hub": hub }));
    }
    if let Some(file) = settings.text("train_file").filter(|_| all.is_empty()) {
        all.push(dataset(&file, ""));
    }
    let held_out =
        mixture(settings, "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", "test", draft);
    let older = mixer(settings, "dataset_eval_mixer", "dataset_eval_splits", "test", draft);
    all.extend(held_out.into_iter().chain(older).map(|mut dataset| {
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
    // open-instruct also treats a list in one variable as one word.
    let words = settings.list(list).join(" ");
    let words: Vec<_> = words.split_whitespace().collect();
    let splits = settings.list(splits);
    let pairs = words.chunks(2).enumerate();
    pairs
        .map(|(index, pair)| {
            let share = pair.get(1).copied().unwrap_or("1.0");
            is_taken_whole(list, pair[0], share, draft);
            let split = splits.get(index).or_else(|| splits.first()).map_or(default, String::as_str);
            dataset(pair[0], split)
        })
        .collect()
}

/// Reads a table of names and shares, as in older scripts and settings files.
fn mixer(settings: &Settings, table: &str, splits: &str, default: &str, draft: &mut Draft) -> Vec<Value> {
    let splits = settings.list(splits);
    let apart = settings.below(&format!("{table}.")).into_iter();
    let in_one = settings.get(table).and_then(Value::as_object).into_iter().flatten();
    let in_one = in_one.map(|(name, share)| (name.clone(), share.clone()));
    let apart = apart.map(|(name, share)| (name.to_owned(), share.clone()));
    let shares: Vec<(String, Value)> = in_one.chain(apart).collect();
    let mut all = Vec::new();
    for (index, (name, share)) in shares.iter().enumerate() {
        is_taken_whole(table, name, &text_of(share), draft);
        let split = splits.get(index).or_else(|| splits.first()).map_or(default, String::as_str);
        all.push(dataset(name, split));
    }
    all
}

/// Adds a remark that all rows are used if a script uses a part of a data set, or repeats it.
fn is_taken_whole(list: &str, name: &str, share: &str, draft: &mut Draft) {
    if !matches!(share, "1.0" | "1") {
        draft.remark("data", format!("{list} takes {share} of {name}: all rows are taken here."));
    }
}

/// Makes a data set of the hub, or a file.
fn dataset(name: &str, split: &str) -> Value {
    let is_file = [".jsonl", ".json", ".parquet"].iter().any(|ending| name.ends_with(ending));
    match (is_file, split) {
        (true, _) => json!({"files": [name]}),
        (false, "") => json!({"hub": {"repo": name}}),
        (false, split) => json!({"hub": {"repo": name, "split": split}}),
    }
}

fn preference(settings: &Settings, draft: &mut Draft) {
    let loss = settings.text("loss_type").unwrap_or_else(|| "dpo_norm".to_owned());
    let beta = settings.number("beta").unwrap_or(5.0);
    draft.set("spec.algorithm.preference.beta", beta);
    match loss.trim_start_matches("DPOLossType.") {
        "dpo" => draft.set("spec.algorithm.preference.loss", "Sigmoid"),
        "dpo_norm" => draft.set("spec.algorithm.preference.loss", "SigmoidNorm"),
        "simpo" => {
            draft.set("spec.algorithm.kind", "SimPO");
            let ratio = settings.number("gamma_beta_ratio").unwrap_or(0.3);
            draft.set("spec.algorithm.preference.simpoGamma", ratio * beta);
        }
        other => draft.remark(
            "algorithm",
            format!("loss_type={other} has no equal: Sigmoid and SigmoidNorm are there."),
        ),
    }
}

fn offline(launch: &Launch, settings: &Settings, defaults: &Defaults, draft: &mut Draft) {
    let of_device = settings.count("per_device_train_batch_size").unwrap_or(defaults.rows_per_device);
    let accumulated = settings.count("gradient_accumulation_steps").unwrap_or(defaults.passes).max(1);
    draft.set(
        "spec.training.promptsPerStep",
        of_device.saturating_mul(accumulated).saturating_mul(launch.processes.unwrap_or(1).max(1)),
    );
    if launch.processes.is_none() {
        let text = "the script does not say how many processes it starts: a batch is that of one device.";
        draft.remark("training", text);
    }
    let length = settings.count("max_seq_length").or_else(|| settings.count("max_token_length"));
    if let Some(length) = length.or(defaults.max_tokens) {
        draft.set("spec.data.maxPromptTokens", length / 2);
        draft.set("spec.rollout.maxCompletionTokens", length - length / 2);
        draft.remark(
            "data",
            format!("a length of {length} holds prompt and answer: its halves are a guess, change them."),
        );
    } else {
        draft.remark(
            "data",
            "max_seq_length is not set: rows of any length are learned there, here maxPromptTokens and \
             maxCompletionTokens bound them.",
        );
    }
    let steps = ["max_train_steps", "num_training_steps", "max_steps"];
    match steps.iter().find_map(|key| settings.count(key)) {
        Some(steps) => draft.set("spec.training.steps", steps),
        None => {
            let epochs = settings.count("num_train_epochs").or_else(|| settings.count("num_epochs"));
            draft.set("spec.training.epochs", epochs.unwrap_or(defaults.epochs));
        }
    }
    draft.set("spec.training.evaluateEvery", 0);
}

/// Sets the fields of AdamW. Where `set_weight_decay_on_bias_and_norm` is false, open-instruct passes no
/// weight decay on.
fn optimizer(settings: &Settings, defaults: &Defaults, draft: &mut Draft) {
    if settings.get("learning_rate").is_none() {
        draft.set("spec.training.optimizer.learningRate", defaults.learning_rate);
    }
    draft.set_some("spec.training.optimizer.betas", defaults.betas.map(|betas| json!(betas)));
    let groups = "set_weight_decay_on_bias_and_norm";
    let is_left_to_torch = settings.get(groups).is_some() && !settings.is_true(groups);
    let decay = settings.number("weight_decay").unwrap_or(defaults.weight_decay);
    let decay = if is_left_to_torch { defaults::TORCH_WEIGHT_DECAY } else { decay };
    draft.set("spec.training.optimizer.weightDecay", decay);
    if settings.get("eps").is_none() && defaults.epsilon != defaults::EPSILON {
        let (theirs, ours) = (defaults.epsilon, defaults::EPSILON);
        let text = format!("eps={theirs:e}, the default there, has no equal: AdamW's epsilon is {ours:e}.");
        draft.remark("training", text);
    }
}

/// Sets the optimizer and its schedule.
fn schedule(settings: &Settings, defaults: &Defaults, draft: &mut Draft) {
    optimizer(settings, defaults, draft);
    let norms = ["max_grad_norm", "clip_grad_norm"];
    if !defaults.clips && norms.iter().all(|key| settings.get(key).is_none()) {
        draft.set("spec.training.maxGradNorm", 0.0);
    }
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
    let steps = settings.count("warm_up_steps").filter(|steps| *steps > 0);
    let by_default = Some(defaults.warmup_ratio).filter(|_| steps.is_none());
    let ratio = settings.number("warmup_ratio").or(by_default).filter(|ratio| *ratio > 0.0);
    draft.set_some("spec.training.schedule.warmupRatio", ratio);
    let steps = steps.filter(|_| ratio.is_none());
    draft.set_some("spec.training.schedule.warmupSteps", steps);
}

/// Sets the workers: learners and engines share GPUs in our jobs.
fn workers(launch: &Launch, settings: &Settings, draft: &mut Draft) {
    let of = |key: &str| -> Vec<u64> {
        settings.list(key).iter().filter_map(|count| count.parse().ok()).collect()
    };
    let learners = Some(of("num_learners_per_node")).filter(|learners| !learners.is_empty());
    let learners = learners.unwrap_or_else(|| of("actor_num_gpus_per_node"));
    if learners.iter().any(|count| Some(count) != learners.first()) {
        draft.remark(
            "workers",
            format!(
                "nodes with {learners:?} learners have no equal: each worker has as many ranks as the first."
            ),
        );
    }
    let machines = launch.machines.unwrap_or(1).max(learners.len() as u64).max(1);
    let of_machine = learners.first().copied().or(launch.processes.map(|all| all / machines));
    let of_machine = of_machine.unwrap_or(1).max(1);
    draft.set("spec.workers.count", machines);
    draft.set("spec.workers.ranksPerWorker", of_machine);
    draft.set("spec.workers.device", "Cuda");
    let sp = ["sequence_parallel_size", "context_parallel_degree", "cp_degree"];
    let sp = sp.iter().find_map(|key| settings.count(key)).unwrap_or(1).max(1);
    let tp = settings.count("tensor_parallel_degree").unwrap_or(1).max(1);
    let shard = machines.saturating_mul(of_machine) / sp.saturating_mul(tp);
    draft.set_some("spec.workers.mesh.dpShard", Some(shard).filter(|ranks| *ranks > 1));
    draft.set_some("spec.workers.mesh.sp", Some(sp).filter(|ranks| *ranks > 1));
    draft.set_some("spec.workers.mesh.tp", Some(tp).filter(|ranks| *ranks > 1));
    let tp = settings.count("vllm_tensor_parallel_size").filter(|size| *size > 1);
    draft.set_some("spec.workers.mesh.rolloutTp", tp);
}
