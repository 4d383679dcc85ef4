//! Tests that each setting of another trainer is converted, or reported with a reason, and that a value which
//! a manifest refuses is reported too.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeMap;

use rlt_convert::{Conversion, Launch, Project, convert, launches, launches_of_python};
use serde_json::{Value, json};

const VERL: &str = "actor_rollout_ref.model.path=org/base data.train_files=/data/gsm8k.parquet \
    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 data.max_response_length=1024";
const TRL: &str = "--model_name_or_path org/base --dataset_name org/data";
const OPEN_INSTRUCT: &str = "--model_name_or_path org/base --dataset_mixer_list org/gsm8k 1.0";

pub(super) fn launch(project: Project, trainer: &str, settings: &str) -> Launch {
    let base = match project {
        Project::Verl => VERL,
        Project::Trl => TRL,
        Project::OpenInstruct => OPEN_INSTRUCT,
    };
    let words = base.split_whitespace().chain(settings.split_whitespace());
    Launch::new(project, trainer, &words.map(str::to_owned).collect::<Vec<_>>())
}

/// Returns the specification of a conversion, whose manifest must be valid, and its comments as one text.
pub(super) fn read(conversion: &Conversion) -> (Value, String) {
    let problems = rlt_api::validate(&conversion.manifest).err().unwrap_or_default();
    assert!(problems.is_empty(), "{problems:?}\n{}", conversion.manifest);
    let manifest: Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
    let comments = conversion.manifest.lines().filter_map(|line| line.trim().strip_prefix("# "));
    (manifest["spec"].clone(), comments.collect::<Vec<_>>().join(" "))
}

fn converted(project: Project, trainer: &str, settings: &str) -> (Value, String) {
    read(&convert(&launch(project, trainer, settings), &[], "test").unwrap())
}

#[test]
fn settings_that_a_trainer_does_not_convert_are_named() {
    let cases = [
        (Project::Trl, "rloo", "--normalize_advantages True", "normalize_advantages=true"),
        (Project::Trl, "sft", "--beta 0.2", "beta=0.2"),
        (Project::Trl, "sft", "--loss_type dft", "loss_type=dft"),
        (Project::Trl, "online_dpo", "--max_length 512", "max_length=512"),
        (
            Project::Trl,
            "grpo",
            "--lr_scheduler_kwargs {\"num_cycles\":3}",
            "lr_scheduler_kwargs={\"num_cycles\":3}",
        ),
        (Project::Trl, "dpo", "--data_seed 7 --seed 8", "data_seed=7"),
        (Project::Trl, "dpo", "--eval_strategy epoch", "eval_strategy=epoch"),
        (Project::Trl, "sft", "--eos_token <end>", "eos_token=<end>"),
        (Project::Trl, "sft", "--dtype float64", "dtype=float64"),
        (
            Project::Trl,
            "sft",
            "--train_sampling_strategy group_by_length",
            "train_sampling_strategy=group_by_length",
        ),
        (Project::Verl, "main_ppo", "actor_rollout_ref.actor.fsdp_config.dtype=fp8", "fsdp_config.dtype=fp8"),
        (Project::OpenInstruct, "grpo_fast", "--masked_mean_axis 1", "masked_mean_axis=1"),
        (Project::OpenInstruct, "grpo_fast", "--remap_verifier a=b", "remap_verifier=a=b"),
        (Project::OpenInstruct, "grpo_fast", "--loss_fn other", "loss_fn=other"),
        (Project::OpenInstruct, "grpo_fast", "--seed 1", "leaves groups of equal rewards out"),
        (Project::Verl, "main_ppo", "data.gen_batch_size=64", "data.gen_batch_size=64"),
        (Project::Verl, "main_ppo", "--config-path /a --config-name mine", "--config-name=mine has no equal"),
        (
            Project::Verl,
            "main_ppo",
            "data.seed=3 trainer.seed=4",
            "data.seed=3 has no equal: trainer.seed sets",
        ),
        (Project::Verl, "main_ppo", "actor_rollout_ref.rollout.do_sample=False", "rollout.do_sample=false"),
        (
            Project::Verl,
            "main_ppo",
            "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_token_veto_threshold=1e-4",
            "rollout_token_veto_threshold",
        ),
        (
            Project::Verl,
            "main_ppo",
            "custom_reward_function.path=a.py custom_reward_function.reward_kwargs.alpha=0.5",
            "custom_reward_function.reward_kwargs.alpha=0.5",
        ),
        (Project::Verl, "main_ppo", "trainer.total_epochs=0.5", "trainer.total_epochs=0.5"),
        (Project::Verl, "main_ppo", "data.train_batch_size=-5", "data.train_batch_size=-5 has no equal"),
        (Project::Trl, "sft", "--max_steps 1e16", "max_steps=1e+16 has no equal"),
        (Project::Verl, "main_ppo", "data.train_batch_size=${batch}", "data.train_batch_size=${batch}"),
        (
            Project::Verl,
            "main_ppo",
            "actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff=0.01",
            "moe_aux_loss_coeff=0.01",
        ),
    ];
    for (project, trainer, settings, named) in cases {
        let (_, comments) = converted(project, trainer, settings);
        assert!(comments.contains(named), "{settings}: {comments}");
    }
}

/// Scripts set many parameters of features that they do not turn on. These parameters need no remark.
#[test]
fn settings_without_effect_in_the_other_trainer_are_not_named() {
    let idle = "actor_rollout_ref.actor.kl_loss_coef=0.1 algorithm.lam=0.9 actor_rollout_ref.model.lora_alpha=8 \
        algorithm.filter_groups.metric=acc reward_model.overlong_buffer.len=64 critic.optim.lr=1e-5";
    for (project, trainer, settings) in [
        (Project::Verl, "main_ppo", idle),
        (Project::Trl, "grpo", "--lora_r 8 --ref_model_sync_steps 9 --reward_funcs think_format_reward"),
    ] {
        let conversion = convert(&launch(project, trainer, settings), &[], "test").unwrap();
        assert!(conversion.is_whole(), "{:?}", conversion.lost().collect::<Vec<_>>());
        read(&conversion);
    }
}

#[test]
fn settings_of_a_critic_that_differ_from_the_actors_are_named() {
    let critic = |settings: &str| {
        converted(Project::Verl, "main_ppo", &format!("algorithm.adv_estimator=gae {settings}")).1
    };
    for given in ["critic.ppo_epochs=4", "critic.model.path=org/other", "critic.grad_clip=0.5"] {
        assert!(critic(given).contains(given), "{given}");
    }
    let equal = critic("critic.model.path=org/base critic.ppo_epochs=1 critic.grad_clip=1");
    assert!(!equal.contains("critic."), "{equal}");
}

#[test]
fn values_that_a_manifest_refuses_are_named_or_written_in_its_form() {
    for (settings, pointer, expected) in [
        ("--max_grad_norm 0", "/training/maxGradNorm", json!(1e6)),
        ("--max_grad_norm None", "/training/maxGradNorm", json!(1e6)),
        ("--top_k -1", "/rollout/topK", json!(0)),
        ("--temperature 0", "/rollout/temperature", json!(0.01)),
        ("--num_iterations 2.0", "/training/epochsPerBatch", json!(2)),
        ("--gradient_checkpointing yes", "/training/activationCheckpointing", json!(true)),
        ("--no-gradient_checkpointing", "/training/activationCheckpointing", json!(false)),
    ] {
        let (spec, comments) = converted(Project::Trl, "grpo", settings);
        assert_eq!(spec.pointer(pointer), Some(&expected), "{settings}: {comments}");
    }
    for (settings, named) in [
        ("--seed -1", "seed=-1"),
        ("--save_total_limit 0", "save_total_limit=0"),
        ("--save_steps 0.1", "save_steps=0.1"),
    ] {
        let (_, comments) = converted(Project::Trl, "grpo", settings);
        assert!(comments.contains(named), "{settings}: {comments}");
    }
    let (spec, _) = converted(Project::Verl, "main_ppo", "actor_rollout_ref.actor.optim.betas=(0.9,0.95)");
    assert_eq!(spec["training"]["optimizer"]["betas"], json!([0.9, 0.95]));
    let (spec, _) = converted(Project::OpenInstruct, "grpo_fast", "--local_eval_every -1 --max_grad_norm -1");
    assert_eq!(spec["training"]["evaluateEvery"], 0);
}

/// The parsers of flags accept a quoted number as a number.
#[test]
fn numbers_in_quotes_of_a_settings_file_are_numbers() {
    let file = "beta: \"0.04\"\nnum_generations: \"16\"\nreward_funcs: [accuracy_reward]\nreward_weights: [\"2.0\"]\n";
    let conversion = convert(&launch(Project::Trl, "grpo", ""), &[file.to_owned()], "test").unwrap();
    let (spec, _) = read(&conversion);
    assert_eq!(spec["algorithm"]["kl"]["coefficient"], 0.04);
    assert_eq!(spec["rollout"]["samplesPerPrompt"], 16);
    assert_eq!(spec["rewards"]["functions"][0]["weight"], 2.0);
}

#[test]
fn a_settings_file_that_the_script_writes_is_that_of_the_launch() {
    let script = "cat > own.yaml <<EOF\nbeta: 0.3\nEOF\naccelerate launch --num_processes 2 -m trl.scripts.dpo \\\n  \
                  --config own.yaml --model_name_or_path org/base --dataset_name org/data\n";
    let (launches, _) = launches(script, &BTreeMap::new(), &[]).unwrap();
    let text = launches[0].texts["own.yaml"].clone();
    let (spec, _) = read(&convert(&launches[0], &[text], "test").unwrap());
    assert_eq!(spec["algorithm"]["preference"]["beta"], 0.3);
}

#[test]
fn references_of_a_settings_file_are_followed() {
    let file = "data:\n  train_batch_size: 64\nactor_rollout_ref:\n  actor:\n    ppo_mini_batch_size: ${data.train_batch_size}\n\
                \x20   ppo_epochs: ${oc.select:mine.epochs,3}\n    entropy_coeff: ${mine.entropy}\n";
    let conversion = convert(&launch(Project::Verl, "main_ppo", ""), &[file.to_owned()], "test").unwrap();
    let (spec, comments) = read(&conversion);
    assert_eq!(spec["training"]["promptsPerUpdate"], 64, "{comments}");
    assert_eq!(spec["training"]["epochsPerBatch"], 3);
    assert!(spec["algorithm"]["loss"]["entropyCoefficient"].is_null());
}

/// YAML reads `y`, `no` and `on` as booleans.
#[test]
fn a_job_may_be_named_by_a_word_of_yaml() {
    for name in ["y", "no", "on", "null"] {
        let conversion = convert(&launch(Project::Trl, "grpo", ""), &[], name).unwrap();
        assert_eq!(rlt_api::validate(&conversion.manifest).unwrap().metadata().name, name);
    }
}

#[test]
fn kinds_clips_and_estimators_of_trl_are_those_of_their_trainers() {
    for (trainer, settings, pointer, expected) in [
        ("cpo", "--loss_type hinge", "/kind", json!("CPO")),
        ("cpo", "--loss_type simpo", "/kind", json!("SimPO")),
        ("cpo", "--loss_type alphapo --alpha 0.2", "/kind", json!("SimPO")),
        ("rloo", "--epsilon 0.1 --epsilon_high 0.3", "/loss/clipHigh", json!(0.3)),
        ("ppo", "--kl_estimator k3", "/kl/estimator", json!("K3")),
        ("ppo", "--cliprange 0.3", "/loss/clipLow", json!(0.3)),
        ("ppo", "", "/advantage/lambda", json!(0.95)),
        ("ppo", "--learning_rate 2e-6", "/critic/learningRate", json!(2e-6)),
    ] {
        let (spec, comments) = converted(Project::Trl, trainer, settings);
        assert_eq!(spec["algorithm"].pointer(pointer), Some(&expected), "{trainer} {settings}: {comments}");
    }
}

/// The optimizer of open-instruct clips no gradients of demonstrations and pairs by default.
#[test]
fn defaults_of_open_instruct_are_stated() {
    let fields = |trainer: &str, further: &str| {
        let (spec, _) = converted(Project::OpenInstruct, trainer, further);
        let of = |field: &str| spec["training"].pointer(field).and_then(Value::as_f64);
        let paths = [
            "/optimizer/learningRate",
            "/schedule/warmupRatio",
            "/maxGradNorm",
            "/epochs",
            "/promptsPerStep",
        ];
        paths.map(of)
    };
    assert_eq!(fields("finetune", ""), [Some(2e-5), Some(0.03), Some(1e6), Some(2.0), Some(8.0)]);
    assert_eq!(fields("dpo_tune_cache", ""), [Some(2e-5), Some(0.1), Some(1e6), Some(1.0), Some(8.0)]);
    assert_eq!(fields("olmo_core_finetune", ""), [Some(8e-5), Some(0.03), Some(1e6), Some(3.0), Some(8.0)]);
    assert_eq!(fields("reward_modeling", ""), [Some(2e-5), None, Some(1e6), Some(1.0), Some(8.0)]);
    assert_eq!(fields("grpo_fast", ""), [Some(2e-5), None, None, None, Some(16.0)]);
    let (_, comments) = converted(Project::OpenInstruct, "grpo_fast", "");
    assert!(comments.contains("async_steps, 8 by default there, has no equal"), "{comments}");
    let (_, comments) = converted(Project::OpenInstruct, "grpo_fast", "--async_steps 1");
    assert!(!comments.contains("async_steps"), "{comments}");
    for (trainer, longest) in [("dpo", None), ("finetune", None), ("reward_modeling", Some(256))] {
        let (spec, comments) = converted(Project::OpenInstruct, trainer, "");
        assert_eq!(spec["data"]["maxPromptTokens"].as_u64(), longest, "{trainer}");
        assert_eq!(comments.contains("rows of any length are learned there"), longest.is_none(), "{trainer}");
    }
    let given = "--learning_rate 1e-6 --warmup_ratio 0.2 --max_grad_norm 0.5 --num_epochs 3";
    assert_eq!(fields("dpo", given), [Some(1e-6), Some(0.2), Some(0.5), Some(3.0), Some(8.0)]);
}

/// PyTorch's AdamW decays weights by 0.01 unless a trainer says otherwise, which the older ones do not.
#[test]
fn the_optimizer_of_each_trainer_of_open_instruct_has_its_defaults() {
    let optimizer = |trainer: &str, further: &str| {
        let (spec, comments) = converted(Project::OpenInstruct, trainer, further);
        let optimizer = &spec["training"]["optimizer"];
        let numbers = |values: &Vec<Value>| -> Vec<f64> { values.iter().filter_map(Value::as_f64).collect() };
        let betas = optimizer["betas"].as_array().map(numbers);
        let (rate, decay) = (optimizer["learningRate"].as_f64(), optimizer["weightDecay"].as_f64());
        (rate, betas, decay, comments.contains("AdamW's epsilon is 1e-8"))
    };
    for trainer in ["grpo_fast", "grpo", "dpo", "dpo_tune_cache", "finetune"] {
        assert_eq!(optimizer(trainer, ""), (Some(2e-5), None, Some(0.0), false), "{trainer}");
    }
    let later = optimizer("olmo_core_finetune", "");
    assert_eq!(later, (Some(8e-5), Some(vec![0.9, 0.95]), Some(0.0), false));
    assert_eq!(optimizer("reward_modeling", ""), (Some(2e-5), None, Some(0.01), true));
    assert_eq!(optimizer("reward_modeling", "--eps 1e-6"), (Some(2e-5), None, Some(0.01), true));
    assert_eq!(optimizer("reward_modeling", "--eps 1e-8"), (Some(2e-5), None, Some(0.01), false));
    assert_eq!(optimizer("ppo_vllm_thread_ray_gtrl", ""), (Some(2e-5), None, Some(0.01), false));
    let given = "--weight_decay 0.1 --learning_rate 1e-6";
    assert_eq!(optimizer("olmo_core_finetune", given).2, Some(0.1));
    assert_eq!(optimizer("grpo_fast", given), (Some(1e-6), None, Some(0.1), false));
    let one_group = format!("{given} --set_weight_decay_on_bias_and_norm False");
    assert_eq!(optimizer("grpo_fast", &one_group).2, Some(0.01));
}

/// open-instruct rewards a format as such only where a script says that it is added.
#[test]
fn a_format_that_is_a_condition_of_the_reward_is_said() {
    let rewards = |settings: &str| {
        let (spec, comments) = converted(Project::OpenInstruct, "grpo_fast", settings);
        let functions = spec["rewards"]["functions"].as_array().unwrap().clone();
        let format = functions.into_iter().find(|function| function["kind"] == "Format");
        (format.is_some(), comments.contains("is a condition of the verifier's reward"))
    };
    assert_eq!(rewards("--apply_r1_style_format_reward True"), (true, true));
    let added = "--apply_r1_style_format_reward True --additive_format_reward True";
    assert_eq!(rewards(added), (true, false));
    assert_eq!(rewards("--additive_format_reward True"), (false, false));
    let alone = "--apply_r1_style_format_reward True --apply_verifiable_reward False";
    assert_eq!(rewards(alone), (true, false));
}

#[test]
fn everything_else_is_converted_with_an_estimator_that_is_not_known() {
    let settings = "algorithm.adv_estimator=mine actor_rollout_ref.actor.use_kl_loss=True \
        actor_rollout_ref.actor.kl_loss_coef=0.02 actor_rollout_ref.actor.clip_ratio_high=0.3";
    let (spec, comments) = converted(Project::Verl, "main_ppo", settings);
    assert!(comments.contains("algorithm.adv_estimator=mine has no equal"), "{comments}");
    assert_eq!(spec["algorithm"]["kl"]["coefficient"], 0.02);
    assert_eq!(spec["algorithm"]["loss"]["clipHigh"], 0.3);
}

/// A batch counts the rows of all devices, which accelerate's own settings file may say alone.
#[test]
fn a_number_of_processes_that_is_not_in_the_script_is_said() {
    let remark = "does not say how many processes";
    let batch = |settings: &str| {
        let (spec, comments) = converted(Project::Trl, "dpo", settings);
        (spec["training"]["promptsPerStep"].as_u64(), comments.contains(remark))
    };
    assert_eq!(batch("--per_device_train_batch_size 4"), (Some(4), true));
    assert_eq!(batch("--per_device_train_batch_size 4 --num_processes 8"), (Some(32), false));
    assert!(converted(Project::OpenInstruct, "finetune", "").1.contains(remark));
}

/// Batches of PPO and online DPO count prompts, those of GRPO completions.
#[test]
fn batches_of_trl_count_what_their_trainers_count() {
    let batch = "--per_device_train_batch_size 16 --gradient_accumulation_steps 2";
    let sizes = |trainer: &str, further: &str| {
        let (spec, _) = converted(Project::Trl, trainer, &format!("{batch} {further}"));
        let of = |pointer: &str| spec.pointer(pointer).and_then(Value::as_u64).unwrap();
        ["/training/promptsPerStep", "/training/promptsPerUpdate", "/rollout/samplesPerPrompt"].map(of)
    };
    assert_eq!(sizes("ppo", "--num_mini_batches 4"), [128, 32, 1]);
    assert_eq!(sizes("online_dpo", ""), [32, 32, 2]);
    assert_eq!(sizes("grpo", ""), [4, 4, 8]);
    let (spec, _) = converted(Project::Trl, "ppo", &format!("{batch} --total_episodes 640"));
    assert_eq!(spec["training"]["steps"], 20);
}

#[test]
fn tokens_that_supervised_training_of_trl_learns_are_converted_or_named() {
    let learned = |settings: &str| {
        let (spec, comments) = converted(Project::Trl, "sft", settings);
        (spec["data"]["trainOn"].clone(), comments.contains("without assistant_only_loss"))
    };
    assert_eq!(learned(""), (Value::Null, true));
    assert_eq!(learned("--assistant_only_loss True"), (Value::Null, false));
    assert_eq!(learned("--completion_only_loss False"), ("Everything".into(), false));
}

#[test]
fn arguments_of_python_that_are_computed_are_named_in_the_manifest() {
    let program = "BETA = 0.3\nargs = DPOConfig(beta=BETA, learning_rate=rate())\nargs.max_steps = 5\n\
                   trainer = DPOTrainer(\"org/base\", args=args, train_dataset=load_dataset(\"org/data\"))\n";
    let (launches, _) = launches_of_python(program, &[]).unwrap();
    let (spec, comments) = read(&convert(&launches[0], &[], "test").unwrap());
    assert_eq!(spec["algorithm"]["preference"]["beta"], 0.3);
    assert_eq!(spec["training"]["steps"], 5);
    assert!(comments.contains("learning_rate=${rate()}"), "{comments}");
}
