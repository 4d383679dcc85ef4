//! verl: `main_ppo`, its variants, and `sft_trainer`, with the keys of verl 0.8 to 0.10.

mod algorithm;
mod rewards;

use serde_json::{Value, json};

use crate::adapter;
use crate::draft::Draft;
use crate::key::Table;
use crate::launch::Launch;
use crate::outcome::{Fate, Outcome};
use crate::rewards::is_hub_name;
use crate::settings::{Settings, is_computed, is_true};
use crate::tracking::{self, RunNames};

/// verl's defaults that differ from ours, or depend on other settings: they apply if a script omits the key.
const DEFAULTS: [(&str, &str); 26] = [
    ("actor_rollout_ref.actor.clip_ratio", "0.2"),
    ("actor_rollout_ref.actor.clip_ratio_c", "3.0"),
    ("actor_rollout_ref.actor.kl_loss_coef", "0.001"),
    ("actor_rollout_ref.actor.kl_loss_type", "low_var_kl"),
    ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size", "256"),
    ("actor_rollout_ref.rollout.n", "1"),
    ("actor_rollout_ref.rollout.tensor_model_parallel_size", "2"),
    ("actor_rollout_ref.rollout.val_kwargs.temperature", "0"),
    ("algorithm.adv_estimator", "gae"),
    ("algorithm.gamma", "1.0"),
    ("algorithm.kl_ctrl.kl_coef", "0.001"),
    ("algorithm.kl_penalty", "kl"),
    ("algorithm.lam", "1.0"),
    ("algorithm.norm_adv_by_std_in_grpo", "true"),
    ("data.max_prompt_length", "512"),
    ("data.max_response_length", "512"),
    ("data.train_batch_size", "1024"),
    ("data.truncation", "error"),
    ("trainer.n_gpus_per_node", "8"),
    ("trainer.nnodes", "1"),
    ("trainer.save_freq", "-1"),
    ("trainer.test_freq", "-1"),
    ("trainer.total_epochs", "30"),
    ("trainer.val_before_train", "true"),
];

/// Default learning rate of verl's supervised trainer.
const SFT_LEARNING_RATE: f64 = 1e-3;
/// Default learning rate of `fsdp_sft_trainer`, the supervised trainer of verl's earlier versions.
const FSDP_SFT_LEARNING_RATE: f64 = 1e-5;
/// Default decay rates of AdamW in `fsdp_sft_trainer`.
const FSDP_SFT_BETAS: [f64; 2] = [0.9, 0.95];
/// Default fraction of the steps in which the learning rate of `fsdp_sft_trainer` rises.
const FSDP_SFT_WARMUP_RATIO: f64 = 0.1;
const SFT_EPOCHS: u64 = 4;

/// Prefixes of settings with the section to which they belong; all others belong to `training`.
const HOMES: [(&str, &str); 12] = [
    ("data.", "data"),
    ("actor_rollout_ref.model.", "model"),
    ("model.", "model"),
    ("actor_rollout_ref.rollout.", "rollout"),
    ("rollout.", "rollout"),
    ("algorithm.", "algorithm"),
    ("critic.", "algorithm"),
    ("distillation.", "algorithm"),
    ("reward", "rewards"),
    ("custom_reward", "rewards"),
    ("ray_", "workers"),
    ("engine.", "workers"),
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
    outcomes.extend(launch.config_name.as_deref().map(settings_file));
    trackers(settings, &mut draft);
    if launch.trainer.contains("sft") {
        finish_sft(launch, settings, &mut draft);
        return (draft, outcomes);
    }
    let given = settings;
    let settings = with_defaults(given);
    model(&settings, "actor_rollout_ref.model.path", &mut draft);
    data(&settings, &mut draft);
    rewards::finish(&settings, &mut draft);
    algorithm::finish(&settings, given, &mut draft);
    rollout(&settings, &mut draft);
    training(&settings, &mut draft);
    workers(launch, given, &settings, &mut draft);
    given.add_uses(&settings);
    (draft, outcomes)
}

/// Returns the outcome for a settings file of Hydra, which is in a folder that the script does not show.
fn settings_file(name: &str) -> Outcome {
    let reason = "the file is not read: `rlctl convert --from verl FILE -- OVERRIDES` reads both";
    Outcome { key: "--config-name".to_owned(), value: name.to_owned(), fate: Fate::Absent(reason.to_owned()) }
}

fn with_defaults(settings: &Settings) -> Settings {
    let mut all = Settings::default();
    let defaults = DEFAULTS.iter().map(|(key, value)| format!("{key}={value}"));
    // The defaults are well-formed: a test reads them.
    let _ = all.add_overrides(&defaults.collect::<Vec<_>>());
    settings
        .iter()
        .filter(|(_, value)| !value.is_null() && !is_computed(value))
        .for_each(|(key, value)| all.set(key, value.clone()));
    all
}

fn trackers(settings: &Settings, draft: &mut Draft) {
    let names = RunNames {
        project: settings.text("trainer.project_name"),
        run: settings.text("trainer.experiment_name"),
        ..RunNames::default()
    };
    tracking::report_to(&settings.list("trainer.logger"), &names, draft);
}

/// Sets a model of the hub, by owner and name, or of a folder.
fn model(settings: &Settings, key: &str, draft: &mut Draft) {
    match settings.text(key) {
        Some(path) if is_hub_name(&path) => draft.set("spec.model.hub.repo", path),
        Some(path) => draft.set("spec.model.path", path),
        None => draft.remark("model", format!("{key} is not set: say `hub.repo` or `path` here.")),
    }
    let prefix =
        key.strip_suffix("path").or_else(|| key.strip_suffix("partial_pretrain")).unwrap_or_default();
    match lora_rank(settings, prefix) {
        Some(rank) => lora(settings, prefix, rank, draft),
        None => vision_tower(settings, draft),
    }
}

/// Sets the training of the vision tower, which verl trains unless it is frozen. A script that mentions
/// neither tower nor images has a text model.
fn vision_tower(settings: &Settings, draft: &mut Draft) {
    let freezes = settings.get("actor_rollout_ref.actor.freeze_vision_tower").map(is_true);
    let has_images = settings.get("data.image_key").is_some();
    let training = match freezes {
        Some(true) => Some("Frozen"),
        Some(false) => Some("Trained"),
        None => has_images.then_some("Trained"),
    };
    draft.set_some("spec.model.visionTower", training);
}

/// Returns a setting of an adapter, by the keys of several versions.
fn of_lora(settings: &Settings, prefix: &str, old: &str, new: &str) -> Option<Value> {
    let either = settings.get(&format!("{prefix}{old}"));
    either.or_else(|| settings.get(&format!("{prefix}lora.{new}"))).cloned()
}

/// Returns the rank of an adapter; `None` if all weights are trained.
fn lora_rank(settings: &Settings, prefix: &str) -> Option<u64> {
    of_lora(settings, prefix, "lora_rank", "rank").and_then(|rank| rank.as_u64()).filter(|rank| *rank > 0)
}

fn lora(settings: &Settings, prefix: &str, rank: u64, draft: &mut Draft) {
    let either = |old: &str, new: &str| of_lora(settings, prefix, old, new);
    draft.set("spec.model.lora.rank", rank);
    draft.set("spec.model.lora.alpha", either("lora_alpha", "alpha").unwrap_or_else(|| json!(16)));
    let named = |field: &str| {
        let names = settings.list(&format!("{prefix}{field}"));
        if names.is_empty() { settings.list(&format!("{prefix}lora.{field}")) } else { names }
    };
    adapter::target(named("target_modules"), draft);
    let excluded = Some(named("exclude_modules")).filter(|names| !names.is_empty());
    draft.set_some("spec.model.lora.excludeModules", excluded);
    let adapter_path = either("lora_adapter_path", "adapter_path");
    let continues = adapter_path.is_some();
    draft.set_some("spec.model.lora.adapterPath", adapter_path);
    merge(settings, prefix, draft);
    megatron_lora(settings, prefix, draft);
    if continues {
        // An adapter that is read from a folder needs no initialization.
        draft.remove("spec.model.lora.init");
    }
}

/// Sets whether the rollout merges the adapter into the weights.
fn merge(settings: &Settings, prefix: &str, draft: &mut Draft) {
    let key = format!("{prefix}lora.merge");
    match settings.get(&key) {
        Some(merge) if is_true(merge) => draft.set("spec.model.lora.merge", true),
        Some(_) if settings.text(&format!("{prefix}lora.type")).as_deref() != Some("dora") => draft.remark(
            "model",
            format!("{key}=false: the plan chooses, unless `lora.merge: false` is said here."),
        ),
        _ => {}
    }
}

/// Sets the fields that only Megatron's adapters have.
fn megatron_lora(settings: &Settings, prefix: &str, draft: &mut Draft) {
    let text = |key: &str| settings.text(&format!("{prefix}lora.{key}"));
    draft.set_some("spec.model.lora.dropout", settings.number(&format!("{prefix}lora.dropout")));
    if text("dropout_position").as_deref() == Some("post") {
        draft.set("spec.model.lora.dropoutPosition", "After");
    }
    if text("lora_A_init_method").as_deref() == Some("xavier") {
        draft.set("spec.model.lora.init", "Xavier");
    }
    if text("type").as_deref() == Some("dora") {
        draft.set("spec.model.lora.dora", true);
    }
}

fn data(settings: &Settings, draft: &mut Draft) {
    let files = |key: &str| settings.list(key).into_iter().map(Value::from).collect::<Vec<_>>();
    let (train, held_out) = (files("data.train_files"), files("data.val_files"));
    if train.is_empty() {
        draft.remark("data", "data.train_files is not set: say `train` here.");
    } else {
        draft.set("spec.data.train", train);
    }
    if !held_out.is_empty() {
        draft.set("spec.data.heldOut", held_out);
    }
    draft.set_some("spec.data.maxPromptTokens", settings.count("data.max_prompt_length"));
    let filters = settings.is_true("data.filter_overlong_prompts");
    let overlong = match settings.text("data.truncation").as_deref() {
        _ if filters => "Filter",
        Some("left") => "TruncateLeft",
        Some("right") => "TruncateRight",
        Some("middle") => {
            draft.remark("data", "data.truncation=middle has no equal: prompts are cut at one end.");
            "TruncateLeft"
        }
        _ => "Error",
    };
    draft.set("spec.data.overlongPrompts", overlong);
    for (key, field) in
        [("data.train_max_samples", "maxTrainPrompts"), ("data.val_max_samples", "maxHeldOutPrompts")]
    {
        draft.set_some(&format!("spec.data.{field}"), settings.count(key).filter(|count| *count > 0));
    }
    for (name, value) in settings.below("data.apply_chat_template_kwargs.") {
        draft.set(&format!("spec.data.templateVariables.{name}"), value.clone());
    }
}

fn rollout(settings: &Settings, draft: &mut Draft) {
    let count = |key: &str| settings.count(&format!("actor_rollout_ref.rollout.{key}"));
    draft.set_some("spec.rollout.samplesPerPrompt", count("n"));
    let length = count("response_length").or_else(|| settings.count("data.max_response_length"));
    draft.set_some("spec.rollout.maxCompletionTokens", length);
    // In verl, 0 and -1 both mean all tokens.
    draft.set_some("spec.rollout.topK", count("top_k").filter(|top| *top > 0));
    if settings.is_true("actor_rollout_ref.rollout.val_kwargs.do_sample") {
        draft.set_some(
            "spec.rollout.heldOut.temperature",
            settings.number("actor_rollout_ref.rollout.val_kwargs.temperature"),
        );
        draft.set_some("spec.rollout.heldOut.samplesPerPrompt", count("val_kwargs.n"));
    }
}

fn training(settings: &Settings, draft: &mut Draft) {
    let actor = |key: &str| format!("actor_rollout_ref.actor.{key}");
    let (prompts, per_update) =
        (settings.count("data.train_batch_size"), settings.count(&actor("ppo_mini_batch_size")));
    draft.set_some("spec.training.promptsPerStep", prompts);
    draft.set_some(
        "spec.training.promptsPerUpdate",
        per_update.map(|count| count.min(prompts.unwrap_or(count))),
    );
    if settings.is_true(&actor("use_dynamic_bsz")) {
        draft.set_some(
            "spec.training.maxTokensPerMicroBatch",
            settings.count(&actor("ppo_max_token_len_per_gpu")),
        );
        let forward = settings.count("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu");
        draft.set_some("spec.training.maxLogprobTokens", forward);
    }
    offload(settings, &["actor_rollout_ref.actor.fsdp_config"], "training.offload", draft);
    if settings.text("algorithm.adv_estimator").as_deref() == Some("gae") {
        let sections = ["critic.fsdp", "critic.model.fsdp_config"];
        offload(settings, &sections, "training.roles.critic.offload", draft);
    }
    length(settings, draft);
    warmup(settings, "actor_rollout_ref.actor.optim", draft);
    frequencies(settings, draft);
}

/// Sets the offload of FSDP2's policy, which keeps weights, gradients and moments on the host.
fn offload(settings: &Settings, sections: &[&str], field: &str, draft: &mut Draft) {
    if sections.iter().any(|section| settings.is_true(&format!("{section}.offload_policy"))) {
        draft.set(&format!("spec.{field}.parameters"), true);
        draft.set(&format!("spec.{field}.optimizer"), true);
    }
}

/// Sets how often held-out prompts are sampled and checkpoints saved; in verl, -1 means never.
fn frequencies(settings: &Settings, draft: &mut Draft) {
    let frequency =
        |key: &str| settings.number(key).map(|steps| steps.max(0.0)).map(|steps| json!(truncated(steps)));
    draft.set_some("spec.training.evaluateEvery", frequency("trainer.test_freq"));
    draft.set_some("spec.checkpoint.everySteps", frequency("trainer.save_freq"));
}

/// Sets the epochs, or the steps if they are given: they take precedence in verl, too.
fn length(settings: &Settings, draft: &mut Draft) {
    match settings.count("trainer.total_training_steps") {
        Some(steps) => draft.set("spec.training.steps", steps),
        None => draft.set_some("spec.training.epochs", settings.count("trainer.total_epochs")),
    }
}

fn warmup(settings: &Settings, optimizer: &str, draft: &mut Draft) {
    let key = |name: &str| format!("{optimizer}.{name}");
    let steps = settings.count(&key("lr_warmup_steps")).filter(|steps| *steps > 0);
    let ratio = settings.number(&key("lr_warmup_steps_ratio")).filter(|ratio| *ratio > 0.0);
    match (steps, ratio) {
        (Some(steps), _) => draft.set("spec.training.schedule.warmupSteps", steps),
        (None, ratio) => draft.set_some("spec.training.schedule.warmupRatio", ratio),
    }
}

fn workers(launch: &Launch, given: &Settings, settings: &Settings, draft: &mut Draft) {
    // If the script does not give a number, another operator's job gives that of its pods.
    let count = |key: &str, of_pods: Option<u64>| given.count(key).or(of_pods).or(settings.count(key));
    let nodes = count("trainer.nnodes", launch.machines);
    let gpus = count("trainer.n_gpus_per_node", launch.processes);
    let ranks = nodes.unwrap_or(1).saturating_mul(gpus.unwrap_or(1));
    draft.set("spec.workers.count", nodes.unwrap_or(1));
    draft.set("spec.workers.ranksPerWorker", gpus.unwrap_or(1));
    draft.set("spec.workers.device", "Cuda");
    let shard = settings.count("actor_rollout_ref.actor.fsdp_config.fsdp_size").filter(|size| *size > 0);
    let sp = |role: &str| {
        let within =
            settings.count(&format!("actor_rollout_ref.{role}.fsdp_config.ulysses_sequence_parallel_size"));
        let own = settings.count(&format!("actor_rollout_ref.{role}.ulysses_sequence_parallel_size"));
        own.filter(|size| *size > 1).or(within)
    };
    let actor = sp("actor").unwrap_or(1).max(1);
    // In verl, ranks that share tokens also share the weights; here these are separate axes.
    let tp =
        settings.count("actor_rollout_ref.actor.megatron.tensor_model_parallel_size").unwrap_or(1).max(1);
    let shard = shard.unwrap_or((ranks / (actor * tp)).max(1));
    mesh(draft, "dpShard", shard, 1);
    shards_of_roles(settings, shard, draft);
    let reshards = settings.get("actor_rollout_ref.actor.fsdp_config.reshard_after_forward");
    if shard > 1 && reshards.is_some_and(|reshards| !is_true(reshards)) {
        draft.set("spec.training.reshardAfterForward", false);
    }
    mesh(draft, "sp", actor, 1);
    mesh(draft, "tp", tp, 1);
    let experts = settings.count("actor_rollout_ref.actor.megatron.expert_model_parallel_size");
    mesh(draft, "ep", experts.unwrap_or(1).max(1), 1);
    let logprobs = sp("rollout").unwrap_or(actor);
    mesh(draft, "logprobSp", logprobs, actor);
    let has_reference = settings.is_true("actor_rollout_ref.actor.use_kl_loss")
        || settings.is_true("algorithm.use_kl_in_reward");
    if has_reference {
        mesh(draft, "referenceSp", sp("ref").unwrap_or(logprobs), logprobs);
    }
    if settings.text("algorithm.adv_estimator").as_deref() == Some("gae") {
        let of_critic = |prefix: &str| settings.count(&format!("{prefix}.ulysses_sequence_parallel_size"));
        let (older, newer) = (of_critic("critic"), of_critic("critic.fsdp"));
        mesh(draft, "criticSp", older.or(newer).unwrap_or(actor), actor);
    }
    mesh(
        draft,
        "rolloutTp",
        settings.count("actor_rollout_ref.rollout.tensor_model_parallel_size").unwrap_or(1),
        1,
    );
}

/// Sets the FSDP degrees of roles that differ from the actor's; 0 and -1 mean all ranks in verl.
fn shards_of_roles(settings: &Settings, shard: u64, draft: &mut Draft) {
    let has_reference = settings.is_true("actor_rollout_ref.actor.use_kl_loss")
        || settings.is_true("algorithm.use_kl_in_reward");
    let has_critic = settings.text("algorithm.adv_estimator").as_deref() == Some("gae");
    let roles = [
        (has_reference, "actor_rollout_ref.ref.fsdp_config", "referenceDpShard"),
        (has_critic, "critic.fsdp", "criticDpShard"),
        (has_critic, "critic.model.fsdp_config", "criticDpShard"),
        (settings.is_true("reward_model.enable"), "reward_model.model.fsdp_config", "rewardModelDpShard"),
    ];
    for (_, section, axis) in roles.iter().filter(|(has_role, ..)| *has_role) {
        let size = settings.count(&format!("{section}.fsdp_size")).filter(|size| *size > 0);
        mesh(draft, axis, size.unwrap_or(shard), shard);
    }
}

/// Sets a degree of the mesh, unless it is the default.
fn mesh(draft: &mut Draft, axis: &str, degree: u64, default: u64) {
    if degree != default {
        draft.set(&format!("spec.workers.mesh.{axis}"), degree);
    }
}

/// Sets the defaults of `fsdp_sft_trainer` in which it differs from its successor.
fn fsdp_sft_defaults(settings: &Settings, draft: &mut Draft) {
    let is_open = |names: &[&str]| names.iter().all(|name| settings.get(&format!("optim.{name}")).is_none());
    if is_open(&["betas"]) {
        draft.set("spec.training.optimizer.betas", json!(FSDP_SFT_BETAS));
    }
    if is_open(&["lr_warmup_steps", "lr_warmup_steps_ratio"]) {
        draft.set("spec.training.schedule.warmupRatio", FSDP_SFT_WARMUP_RATIO);
    }
    if is_open(&["lr_scheduler", "lr_scheduler_type", "warmup_style", "lr_decay_style"]) {
        draft.set("spec.training.schedule.kind", "Cosine");
    }
}

fn finish_sft(launch: &Launch, settings: &Settings, draft: &mut Draft) {
    let has_model_path = settings.get("model.path").is_some();
    model(settings, if has_model_path { "model.path" } else { "model.partial_pretrain" }, draft);
    draft.set("spec.algorithm.kind", "SFT");
    let is_fsdp = launch.trainer.contains("fsdp_sft");
    let rate = if is_fsdp { FSDP_SFT_LEARNING_RATE } else { SFT_LEARNING_RATE };
    draft.set("spec.training.optimizer.learningRate", settings.number("optim.lr").unwrap_or(rate));
    data(settings, draft);
    draft.remove("spec.data.overlongPrompts");
    if let Some(length) = settings.count("data.max_length") {
        draft.set("spec.data.maxPromptTokens", length / 2);
        draft.set("spec.rollout.maxCompletionTokens", length - length / 2);
        draft.remark(
            "data",
            format!("data.max_length={length} holds prompt and answer: its halves are a guess, change them."),
        );
    }
    draft.set("spec.training.promptsPerStep", settings.count("data.train_batch_size").unwrap_or(256));
    if settings.is_true("data.use_dynamic_bsz") {
        draft.set_some("spec.training.maxTokensPerMicroBatch", settings.count("data.max_token_len_per_gpu"));
    }
    length(settings, draft);
    if settings
        .count("trainer.total_training_steps")
        .or_else(|| settings.count("trainer.total_epochs"))
        .is_none()
    {
        draft.set("spec.training.epochs", SFT_EPOCHS);
    }
    warmup(settings, "optim", draft);
    offload(settings, &["engine"], "training.offload", draft);
    if is_fsdp {
        fsdp_sft_defaults(settings, draft);
    }
    draft.set("spec.training.evaluateEvery", 0);
    frequencies(settings, draft);
    if settings.text("data.truncation").is_some_and(|side| side != "error") {
        draft.remark("data", "data.truncation has no equal with SFT: rows are not cut.");
    }
    let nodes = launch.machines.or_else(|| settings.count("trainer.nnodes")).unwrap_or(1);
    let gpus = launch.processes.or_else(|| settings.count("trainer.n_gpus_per_node")).unwrap_or(1);
    draft.set("spec.workers.count", nodes);
    draft.set("spec.workers.ranksPerWorker", gpus);
    draft.set("spec.workers.device", "Cuda");
    let degree = |names: &[&str]| {
        let said = names.iter().find_map(|name| settings.count(&format!("engine.{name}")));
        said.unwrap_or(1).max(1)
    };
    let sp = degree(&["ulysses_sequence_parallel_size"]);
    let tp = degree(&["tensor_model_parallel_size", "tp_size", "tp"]);
    mesh(draft, "dpShard", (nodes.saturating_mul(gpus) / sp.saturating_mul(tp)).max(1), 1);
    mesh(draft, "sp", sp, 1);
    mesh(draft, "tp", tp, 1);
    mesh(draft, "ep", degree(&["expert_model_parallel_size", "ep_size", "ep"]), 1);
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of steps, not negative"
)]
fn truncated(steps: f64) -> u64 {
    steps as u64
}
