//! Tests that scripts and settings become valid manifests, and that each dropped setting has a remark.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

mod algorithms;
mod clusters;
mod fields;
mod mutated;
mod named;
mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rlt_convert::{
    Conversion, Fate, Launch, Project, convert, launches, launches_of_markdown, launches_of_python, unknown,
};

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// Converts the first launch of a script in the fixtures.
fn script(name: &str, variables: &[(&str, &str)]) -> Conversion {
    of_text(&fixture(name), variables)
}

/// Converts the first launch of a script.
fn of_text(script: &str, variables: &[(&str, &str)]) -> Conversion {
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let environment: BTreeMap<_, _> =
        environment.chain([("HOME".to_owned(), "/home/me".to_owned())]).collect();
    let (launches, _) = launches(script, &environment, &[]).unwrap();
    convert(&launches[0], &[], "test").unwrap()
}

/// Returns the problems of the converted manifest.
fn problems(conversion: &Conversion) -> Vec<String> {
    let problems = rlt_api::validate(&conversion.manifest).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_script_of_verl_becomes_a_valid_manifest() {
    let conversion = script("verl-grpo.sh", &[]);
    assert_eq!(problems(&conversion), [""; 0]);
    insta::assert_snapshot!(conversion.manifest);
}

/// Scripts from Windows have a carriage return after the backslash at the end of a line.
#[test]
fn a_script_that_was_saved_on_windows_gives_the_manifest_of_any_other() {
    for name in ["verl-grpo.sh", "trl-dpo.sh", "tulu-grpo.sh"] {
        let on_windows = fixture(name).replace('\n', "\r\n");
        assert_eq!(of_text(&on_windows, &[]).manifest, script(name, &[]).manifest, "{name}");
    }
    let program = "from trl import DPOConfig\n\nargs = DPOConfig(\n    beta=0.3,\n    max_steps=7,\n)\n";
    let manifest = |text: &str| {
        let (launches, _) = launches_of_python(text, &[]).unwrap();
        convert(&launches[0], &[], "test").unwrap().manifest
    };
    assert_eq!(manifest(&program.replace('\n', "\r\n")), manifest(program));
}

#[test]
fn variables_of_the_environment_reach_the_manifest() {
    let conversion = script("verl-grpo.sh", &[("NODES", "1"), ("TP", "4"), ("MODEL", "/models/own")]);
    assert_eq!(problems(&conversion), [""; 0]);
    let job = rlt_api::validate(&conversion.manifest).unwrap();
    assert_eq!((job.spec().workers.count, job.spec().workers.mesh.rollout_tp), (1, 4));
    assert!(conversion.manifest.contains("path: /models/own\n"));
    assert!(!conversion.manifest.contains("  sp:"));
}

#[test]
fn a_script_of_trl_becomes_a_valid_manifest() {
    let conversion = script("trl-dpo.sh", &[]);
    assert_eq!(problems(&conversion), [""; 0]);
    insta::assert_snapshot!(conversion.manifest);
}

#[test]
fn settings_of_trl_in_yaml_become_a_valid_manifest_and_count_updates_as_steps() {
    let launch = Launch::new(Project::Trl, "grpo", &["--max_steps".to_owned(), "40".to_owned()]);
    let conversion = convert(&launch, &[fixture("trl-grpo.yaml")], "test").unwrap();
    assert_eq!(problems(&conversion), [""; 0]);
    assert_eq!(conversion.python_reward, Some(("mine.rewards".to_owned(), "brevity".to_owned())));
    insta::assert_snapshot!(conversion.manifest);
}

#[test]
fn a_script_of_open_instruct_becomes_a_valid_manifest() {
    let conversion = script("tulu-grpo.sh", &[]);
    assert_eq!(problems(&conversion), [""; 0]);
    insta::assert_snapshot!(conversion.manifest);
}

#[test]
fn a_named_chat_template_of_open_instruct_renders_the_same_text() {
    let cases: serde_json::Value = serde_json::from_str(&fixture("chat_templates.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let arguments =
            ["--model_name_or_path", "org/base-7b", "--chat_template_name", name].map(str::to_owned);
        let launch = Launch::new(Project::OpenInstruct, "finetune", &arguments);
        let conversion = convert(&launch, &[], "test").unwrap();
        assert!(conversion.is_whole(), "{name} is lost");
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        let template = manifest["spec"]["model"]["chatTemplate"].as_str().unwrap();
        let mut environment = minijinja::Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        assert_eq!(environment.render_str(template, case).unwrap(), case["text"].as_str().unwrap(), "{case}");
    }
}

#[test]
fn commands_in_markdown_are_found_in_blocks_of_a_shell() {
    let (launches, notes) = launches_of_markdown(&fixture("trl-readme.md"), &BTreeMap::new(), &[]).unwrap();
    let trainers: Vec<_> = launches.iter().map(|launch| launch.trainer.as_str()).collect();
    assert_eq!(trainers, ["sft", "dpo", "grpo"], "{notes:?}");
    for launch in &launches {
        let conversion = convert(launch, &[], "test").unwrap();
        assert!(conversion.is_whole(), "{:?}", conversion.lost().collect::<Vec<_>>());
        assert!(conversion.manifest.contains("hub:"), "{}", conversion.manifest);
    }
    let without = "No commands.\n\n```python\ntrl sft\n```\n";
    assert!(launches_of_markdown(without, &BTreeMap::new(), &[]).is_err());
}

#[test]
fn adapters_of_megatron_become_those_of_transformers_modules() {
    let settings = [
        ("rank", "8"),
        ("alpha", "16"),
        ("type", "canonical_lora"),
        ("target_modules", "[linear_qkv,linear_proj]"),
        ("exclude_modules", "[linear_k]"),
        ("dropout", "0.1"),
        ("dropout_position", "post"),
        ("lora_A_init_method", "xavier"),
        ("lora_B_init_method", "zero"),
    ];
    let mut arguments: Vec<String> =
        settings.map(|(key, value)| format!("actor_rollout_ref.model.lora.{key}={value}")).to_vec();
    arguments.push("actor_rollout_ref.model.path=Qwen/Qwen2-0.5B-Instruct".to_owned());
    let launch = Launch::new(Project::Verl, "main_ppo", &arguments);
    let conversion = convert(&launch, &[], "test").unwrap();
    let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
    assert_eq!(
        manifest["spec"]["model"]["lora"],
        serde_json::json!({
            "rank": 8, "alpha": 16, "targetModules": ["linear_qkv", "linear_proj"], "excludeModules": ["linear_k"],
            "dropout": 0.1, "dropoutPosition": "After", "init": "Xavier"
        })
    );
    assert!(!conversion.lost().any(|lost| lost.key.contains("lora")));
    // An adapter that is trained further is not initialized.
    arguments.push("actor_rollout_ref.model.lora.adapter_path=/adapters/one".to_owned());
    let continued = convert(&Launch::new(Project::Verl, "main_ppo", &arguments), &[], "test").unwrap();
    let manifest: serde_json::Value = serde_saphyr::from_str(&continued.manifest).unwrap();
    let lora = &manifest["spec"]["model"]["lora"];
    assert_eq!((lora["adapterPath"].as_str(), lora.get("init")), (Some("/adapters/one"), None));
}

#[test]
fn modules_that_are_trained_whole_are_those_of_trl_and_open_instruct() {
    for (project, trainer, switch) in
        [(Project::Trl, "sft", "--use_peft"), (Project::OpenInstruct, "finetune", "--use_lora")]
    {
        let arguments = [
            "--model_name_or_path",
            "org/base-7b",
            switch,
            "--lora_modules_to_save",
            "lm_head",
            "embed_tokens",
        ];
        let launch = Launch::new(project, trainer, &arguments.map(str::to_owned));
        let conversion = convert(&launch, &[], "test").unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        let saved = &manifest["spec"]["model"]["lora"]["modulesToSave"];
        assert_eq!(saved, &serde_json::json!(["lm_head", "embed_tokens"]), "{}", conversion.manifest);
        assert!(!conversion.lost().any(|lost| lost.key.contains("lora")));
    }
}

#[test]
fn an_adapter_of_trl_without_named_modules_has_those_that_peft_chooses() {
    let lora = |further: &str| {
        let flags = format!("--model_name_or_path org/base --use_peft {further}");
        let arguments: Vec<_> = flags.split_whitespace().map(str::to_owned).collect();
        let conversion = convert(&Launch::new(Project::Trl, "sft", &arguments), &[], "test").unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        manifest["spec"]["model"]["lora"].clone()
    };
    assert_eq!(lora("")["targetModules"], serde_json::json!(["q_proj", "v_proj"]));
    assert_eq!(lora("--lora_target_modules all-linear")["targetModules"], serde_json::json!(["all-linear"]));
    assert!(lora("--lora_target_parameters mlp.experts.down_proj")["targetModules"].is_null());
}

#[test]
fn an_adapter_is_merged_where_verl_merges_it_and_otherwise_as_the_plan_finds() {
    let lora = |merge: &str| {
        let settings =
            format!("actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora.merge={merge}");
        let launch = Launch::new(Project::Verl, "main_ppo", &overrides(&settings));
        let conversion = convert(&launch, &[], "test").unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        (manifest["spec"]["model"]["lora"]["merge"].clone(), conversion.manifest)
    };
    assert_eq!(lora("True").0, true);
    let (open, manifest) = lora("False");
    assert!(open.is_null() && manifest.contains("model.lora.merge=false: the plan chooses"), "{manifest}");
}

/// verl trains the tower of a model with images by default.
#[test]
fn a_vision_tower_is_trained_where_verl_trains_it() {
    let model = |settings: &str| {
        let launch = Launch::new(Project::Verl, "main_ppo", &overrides(settings));
        let conversion = convert(&launch, &[], "test").unwrap();
        assert_eq!(problems(&conversion), [""; 0], "{}", conversion.manifest);
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        (manifest["spec"]["model"]["visionTower"].clone(), manifest["spec"]["data"]["imagesKey"].clone())
    };
    let null = serde_json::Value::Null;
    assert_eq!(model(""), (null.clone(), null.clone()));
    assert_eq!(model("data.image_key=pictures"), ("Trained".into(), "pictures".into()));
    let freeze = "data.image_key=images actor_rollout_ref.actor.freeze_vision_tower=True";
    assert_eq!(model(freeze), ("Frozen".into(), "images".into()));
    let adapter = "data.image_key=images actor_rollout_ref.model.lora_rank=8";
    assert_eq!(model(adapter), (null, "images".into()));
}

fn converted(project: Project, trainer: &str, settings: &str) -> serde_json::Value {
    let arguments: Vec<String> = settings.split_whitespace().map(str::to_owned).collect();
    let conversion = convert(&Launch::new(project, trainer, &arguments), &[], "test").unwrap();
    assert_eq!(problems(&conversion), [""; 0], "{}", conversion.manifest);
    serde_saphyr::from_str(&conversion.manifest).unwrap()
}

/// Loggers that need an address which a script does not name are remarks.
#[test]
fn trackers_of_a_script_are_those_of_the_job_under_the_same_names() {
    let verl = |logger: &str| {
        let named = format!("trainer.project_name=rl trainer.experiment_name=first trainer.logger={logger}");
        let launch = Launch::new(Project::Verl, "main_ppo", &overrides(&named));
        let conversion = convert(&launch, &[], "test").unwrap();
        assert!(conversion.is_whole() && problems(&conversion).is_empty(), "{}", conversion.manifest);
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        (manifest["spec"]["tracking"].clone(), conversion.manifest)
    };
    let wandb = serde_json::json!({"wandb": {"project": "rl", "runName": "first"}});
    assert_eq!(verl("['console','wandb']").0, wandb);
    for (logger, remark) in [("mlflow", "`mlflow.url`"), ("swanlab", "swanlab has no equal")] {
        let (tracking, manifest) = verl(&format!("[console,{logger}]"));
        assert!(tracking.is_null() && manifest.contains(remark), "{manifest}");
    }
    let (tracking, manifest) = verl("['console','tensorboard']");
    assert!(tracking.is_null() && !manifest.contains("tracking"), "{manifest}");
    let base = "--model_name_or_path org/base --dataset_name org/data --report_to trackio --run_name first";
    let trl = converted(Project::Trl, "dpo", &format!("{base} --trackio_space_id Org/my_runs"));
    let url = "https://org-my-runs.hf.space";
    assert_eq!(trl["spec"]["tracking"], serde_json::json!({"trackio": {"url": url, "runName": "first"}}));
    let tulu = "--model_name_or_path org/base --dataset_mixer_list org/data 1.0 --exp_name first --wandb_entity team";
    let followed = converted(Project::OpenInstruct, "finetune", &format!("{tulu} --with_tracking"));
    let wandb = serde_json::json!({"wandb": {"entity": "team", "runName": "first"}});
    assert_eq!(followed["spec"]["tracking"], wandb);
    assert!(converted(Project::OpenInstruct, "finetune", tulu)["spec"]["tracking"].is_null());
}

#[test]
fn a_base_in_few_bits_is_that_of_trl() {
    let base = "--model_name_or_path org/base --dataset_name org/data --use_peft";
    let quantization = |flags: &str| {
        converted(Project::Trl, "sft", &format!("{base} {flags}"))["spec"]["model"]["quantization"].clone()
    };
    let nested = serde_json::json!({"format": "Nf4", "doubleQuantization": true});
    assert_eq!(quantization("--load_in_4bit --use_bnb_nested_quant"), nested);
    let fp4 = serde_json::json!({"format": "Fp4"});
    assert_eq!(quantization("--load_in_4bit --bnb_4bit_quant_type fp4"), fp4);
    assert_eq!(quantization("--load_in_8bit --use_bnb_nested_quant"), serde_json::json!({"format": "Int8"}));
    assert!(quantization("--bnb_4bit_quant_type fp4").is_null());
}

/// TRL adds the router loss for every mixture of experts by default, a manifest only if it sets the
/// coefficient.
#[test]
fn routers_are_balanced_as_by_the_default_of_trl() {
    let coefficient = |trainer: &str, model: &str, further: &str| {
        let settings = format!("--model_name_or_path {model} --dataset_name org/data {further}");
        let words: Vec<_> = settings.split_whitespace().map(str::to_owned).collect();
        let conversion = convert(&Launch::new(Project::Trl, trainer, &words), &[], "test").unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        manifest["spec"]["training"]["routerAuxLossCoef"].as_f64()
    };
    for model in ["Qwen/Qwen3-30B-A3B-Instruct-2507", "mistralai/Mixtral-8x7B-v0.1", "allenai/OLMoE-1B-7B"] {
        assert_eq!(coefficient("grpo", model, ""), Some(0.001), "{model}");
    }
    assert_eq!(coefficient("sft", "Qwen/Qwen3-30B-A3B", "--router_aux_loss_coef 0.01"), Some(0.01));
    for model in ["Qwen/Qwen3-8B", "org/base", "org/ab-lab"] {
        assert_eq!(coefficient("dpo", model, ""), None, "{model}");
    }
    assert_eq!(coefficient("orpo", "Qwen/Qwen3-30B-A3B", ""), None);
}

#[test]
fn weights_that_another_trainer_shards_are_sharded_here() {
    let base = "model.path=org/base data.train_files=/data/a.parquet engine.tensor_model_parallel_size=2";
    let mesh = |project, trainer, words: String| {
        let launch = Launch::new(project, trainer, &words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let launch = Launch { processes: Some(8), ..launch };
        let conversion = convert(&launch, &[], "test").unwrap();
        assert!(conversion.is_whole(), "{:?}", conversion.lost().collect::<Vec<_>>());
        let manifest: serde_json::Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
        manifest["spec"]["workers"]["mesh"].clone()
    };
    assert_eq!(
        mesh(Project::Verl, "sft_trainer", base.to_owned()),
        serde_json::json!({"dpShard": 4, "tp": 2})
    );
    let experts = "actor_rollout_ref.actor.megatron.expert_model_parallel_size=4";
    let sparse = mesh(Project::Verl, "main_ppo", overrides(experts).join(" "));
    assert_eq!(
        sparse,
        serde_json::json!({"dpShard": 8, "rolloutTp": 2}),
        "ranks with GPUs exchange no experts"
    );
    let tulu = "--model_name_or_path org/base --dataset_mixer_list org/data 1.0 --tensor_parallel_degree 2";
    let cut = mesh(Project::OpenInstruct, "finetune", tulu.to_owned());
    assert_eq!(cut, serde_json::json!({"dpShard": 4, "tp": 2}));
}

#[test]
fn a_reference_that_follows_is_converted_and_its_updates_are_counted_as_steps() {
    let sync = "--sync_ref_model True --ref_model_sync_steps 9 --ref_model_mixup_alpha 0.8";
    let base = "--model_name_or_path org/base --dataset_name org/data";
    let of_pairs = converted(Project::Trl, "dpo", &format!("{base} {sync}"));
    let given = serde_json::json!({"everySteps": 9, "alpha": 0.8});
    assert_eq!(of_pairs["spec"]["algorithm"]["referenceSync"], given);
    // A step has two updates.
    let sampled = format!(
        "{base} {sync} --beta 0.1 --reward_funcs accuracy_reward --num_generations 8 \
        --per_device_train_batch_size 8 --steps_per_generation 2 --gradient_accumulation_steps 1 --max_steps 8"
    );
    let sampled = converted(Project::Trl, "grpo", &sampled);
    assert_eq!(sampled["spec"]["algorithm"]["referenceSync"]["everySteps"], 5, "{sampled}");
    let stays = converted(Project::Trl, "dpo", &format!("{base} --ref_model_sync_steps 9"));
    assert!(stays["spec"]["algorithm"]["referenceSync"].is_null());
}

/// Each setting is in the manifest, needs nothing, or is named with a reason: by its own comment.
#[test]
fn dropped_settings_are_remarks_at_the_fields_they_would_set() {
    for name in ["verl-grpo.sh", "trl-dpo.sh", "tulu-grpo.sh"] {
        let conversion = script(name, &[]);
        let comments: String =
            conversion.manifest.lines().filter_map(|line| line.trim().strip_prefix('#')).collect();
        assert!(conversion.lost().next().is_some(), "{name}");
        for outcome in conversion.lost() {
            let said = format!("{}={}", outcome.key, outcome.value);
            assert!(comments.contains(&said), "{name}: {said}");
        }
    }
}

/// Every key that the projects' own configurations have is converted, or named with the reason.
#[test]
fn every_setting_of_the_projects_own_configurations_is_known() {
    let lists = [
        ("verl-0.10-main_ppo.keys", Project::Verl, "main_ppo"),
        ("verl-0.10-sft_trainer.keys", Project::Verl, "sft_trainer"),
        ("verl-0.9-engines.keys", Project::Verl, "main_ppo"),
        ("trl-1.16.keys", Project::Trl, "grpo"),
        ("open-instruct-2026-08.keys", Project::OpenInstruct, "grpo_fast"),
    ];
    for (list, project, trainer) in lists {
        let keys = fixture(list);
        let missing = unknown(project, trainer, keys.lines()).unwrap();
        assert_eq!(missing, [""; 0], "{list}");
    }
    let stray = unknown(Project::Verl, "main_ppo", ["trainer.wonderful"].into_iter()).unwrap();
    assert_eq!(stray, ["trainer.wonderful"]);
}

/// A setting that a table declares as converted must change the manifest.
#[test]
fn a_setting_that_counts_as_converted_changes_the_manifest() {
    let plain = Launch::new(Project::Verl, "main_ppo", &overrides(""));
    let without = convert(&plain, &[], "test").unwrap().manifest;
    let changes = [
        "actor_rollout_ref.rollout.n=3",
        "actor_rollout_ref.rollout.temperature=0.7",
        "actor_rollout_ref.rollout.top_k=20",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.loss_agg_mode=token-sum",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "algorithm.use_kl_in_reward=True",
        "algorithm.adv_estimator=rloo",
        "algorithm.filter_groups.enable=True",
        "algorithm.use_pf_ppo=True",
        "algorithm.rollout_correction.rollout_is=token",
        "critic.ulysses_sequence_parallel_size=2 algorithm.adv_estimator=gae",
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size=2 actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=4",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False trainer.n_gpus_per_node=4",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora.merge=True",
        "data.truncation=left",
        "data.train_max_samples=100",
        "actor_rollout_ref.actor.freeze_vision_tower=True",
        "data.apply_chat_template_kwargs.enable_thinking=False",
        "custom_reward_function.path=mine.py",
        "reward.reward_model.enable=True reward.reward_model.model_path=org/rm",
        "reward.reward_kwargs.overlong_buffer_cfg.enable=True reward.reward_kwargs.overlong_buffer_cfg.len=64",
        "reward.sandbox_fusion.url=http://sandbox:8080/run_code",
        "trainer.total_training_steps=7",
        "trainer.save_freq=5",
        "trainer.logger=[console,wandb]",
        "data.image_key=pictures",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
    ];
    for change in changes {
        let launch = Launch::new(Project::Verl, "main_ppo", &overrides(change));
        let conversion = convert(&launch, &[], "test").unwrap();
        let is_converted =
            conversion.outcomes.iter().any(|outcome| matches!(outcome.fate, Fate::Converted(_)));
        assert!(is_converted && conversion.is_whole(), "{change}: {:?}", conversion.outcomes);
        assert_ne!(conversion.manifest, without, "{change}");
        assert_eq!(problems(&conversion), [""; 0], "{change}\n{}", conversion.manifest);
    }
}

fn overrides(further: &str) -> Vec<String> {
    let all = "actor_rollout_ref.model.path=org/base data.train_files=/data/math.parquet algorithm.adv_estimator=grpo \
        actor_rollout_ref.rollout.n=8 data.max_response_length=1024";
    all.split_whitespace().chain(further.split_whitespace()).map(str::to_owned).collect()
}
