//! Tests of settings that become a manifest's field of the same meaning, with values that the field accepts.

use rlt_convert::{Launch, Project, convert};
use serde_json::{Value, json};

use crate::named::{launch, read};

/// One setting, or several, with the field that they set and its value.
type Case = (&'static str, &'static str, &'static str, Value);

/// Checks that each case sets its field, and that none of its settings is reported as lost.
fn assert_fields(project: Project, cases: &[Case]) {
    for (trainer, settings, pointer, expected) in cases {
        let conversion = convert(&launch(project, trainer, settings), &[], "test").unwrap();
        let (spec, comments) = read(&conversion);
        assert_eq!(spec.pointer(pointer).unwrap_or(&Value::Null), expected, "{settings}: {comments}");
        assert!(conversion.is_whole(), "{settings}: {:?}", conversion.lost().collect::<Vec<_>>());
    }
}

#[test]
fn settings_of_trl_that_have_a_field_are_converted() {
    assert_fields(
        Project::Trl,
        &[
            ("grpo", "--dtype float16", "/training/precision", json!("Fp16")),
            ("grpo", "--bf16 False --fp16 True --dtype float16", "/training/precision", json!("Fp16")),
            ("sft", "--bf16 False", "/training/precision", json!("Fp32")),
            ("sft", "--bf16 False --dtype bfloat16", "/training/precision", json!(null)),
            ("sft", "--bf16 True --fp16 False", "/training/precision", json!(null)),
            ("sft", "--dataset_streaming True --max_steps 9", "/data/streaming", json!({})),
            ("sft", "--dataset_streaming False", "/data/streaming", json!(null)),
            ("sft", "--train_sampling_strategy sequential", "/data/shuffle", json!(false)),
            ("sft", "--use_peft --init_lora_weights gaussian", "/model/lora/init", json!("Gaussian")),
            (
                "grpo",
                "--multi_objective_aggregation normalize_then_sum",
                "/algorithm/advantage/estimator",
                json!("Gdpo"),
            ),
            ("ppo", "--stop_token_id 7", "/rollout/stopTokenIds", json!([7])),
        ],
    );
}

#[test]
fn a_mixture_of_trl_becomes_data_sets() {
    let file = "datasets:\n  - path: org/one\n    name: main\n    split: train[:90%]\n  - path: org/two\n    \
                columns: [messages]\n  - path: json\n    data_files: rows.jsonl\n";
    let conversion = convert(&launch(Project::Trl, "sft", ""), &[file.to_owned()], "test").unwrap();
    let (spec, comments) = read(&conversion);
    let expected = json!([
        {"hub": {"repo": "org/one", "split": "train[:90%]", "config": "main"}},
        {"hub": {"repo": "org/two", "split": "train"}},
        {"files": ["rows.jsonl"]},
    ]);
    assert_eq!(spec["data"]["datasets"], expected);
    assert!(comments.contains("columns=[\"messages\"] of org/two has no equal"), "{comments}");
}

#[test]
fn settings_of_open_instruct_that_have_a_field_are_converted() {
    let lora = "--use_lora True --lora_target_modules q_proj v_proj --use_qlora True";
    assert_fields(
        Project::OpenInstruct,
        &[
            ("finetune", "--mixed_precision fp16", "/training/precision", json!("Fp16")),
            ("finetune", "--mixed_precision bf16", "/training/precision", json!(null)),
            ("finetune", lora, "/model/lora/targetModules", json!(["q_proj", "v_proj"])),
            ("finetune", lora, "/model/quantization", json!({"format": "Nf4", "doubleQuantization": true})),
            ("finetune", "--tokenizer_name /models/own", "/model/tokenizer/path", json!("/models/own")),
            ("finetune", "--checkpointing_steps 50", "/checkpoint/everySteps", json!(50)),
            ("finetune", "--checkpointing_steps epoch", "/checkpoint/everySteps", json!(null)),
            ("finetune", "--dist_timeout_hours 1.5", "/workers/peerTimeoutSeconds", json!(5400)),
            ("grpo_fast", "--save_freq 25 --async_steps 1", "/checkpoint/everySteps", json!(25)),
            ("grpo_fast", "--save_freq 25 --checkpoint_state_freq 10", "/checkpoint/everySteps", json!(10)),
            (
                "grpo_fast",
                "--total_episodes 6400 --num_unique_prompts_rollout 8 --num_samples_per_prompt_rollout 8 --num_evals 4",
                "/training/evaluateEvery",
                json!(25),
            ),
            (
                "ppo_vllm_thread_ray_gtrl",
                "--reward_model_path org/scores --reward_model_revision v2 --apply_verifiable_reward False",
                "/rewards/functions/0/model/hub/revision",
                json!("v2"),
            ),
        ],
    );
}

#[test]
fn settings_of_verl_that_have_a_field_are_converted() {
    let offload = json!({"parameters": true, "optimizer": true});
    let sandbox =
        "reward.sandbox_fusion.url=http://sandbox:8080/run_code reward.sandbox_fusion.memory_limit_mb=512";
    assert_fields(
        Project::Verl,
        &[
            (
                "main_ppo",
                "actor_rollout_ref.actor.fsdp_config.dtype=float16",
                "/training/precision",
                json!("Fp16"),
            ),
            (
                "main_ppo",
                "actor_rollout_ref.actor.fsdp_config.offload_policy=True",
                "/training/offload",
                offload.clone(),
            ),
            (
                "main_ppo",
                "algorithm.adv_estimator=gae critic.fsdp.offload_policy=True critic.fsdp.dtype=float16",
                "/training/roles/critic",
                json!({"precision": "Fp16", "offload": offload}),
            ),
            (
                "main_ppo",
                "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.model_dtype=bfloat16",
                "/training/roles/reference/precision",
                json!("Bf16"),
            ),
            (
                "main_ppo",
                "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.offload_policy=True",
                "/training/roles/reference/offloadParameters",
                json!(true),
            ),
            (
                "main_ppo",
                "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.fsdp_size=2",
                "/workers/mesh/referenceDpShard",
                json!(2),
            ),
            (
                "main_ppo",
                "algorithm.adv_estimator=gae critic.model.fsdp_config.fsdp_size=4",
                "/workers/mesh/criticDpShard",
                json!(4),
            ),
            ("main_ppo", sandbox, "/rewards/functions/0/code/memoryMib", json!(512)),
        ],
    );
}

#[test]
fn the_engine_of_supervised_training_in_verl_keeps_its_precision_and_offload() {
    let base = "model.path=org/base data.train_files=/data/rows.parquet data.max_length=512";
    let words = format!("{base} engine.dtype=float16 engine.offload_policy=True");
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let conversion = convert(&Launch::new(Project::Verl, "sft_trainer", &words), &[], "test").unwrap();
    let (spec, comments) = read(&conversion);
    assert_eq!(spec["training"]["precision"], "Fp16", "{comments}");
    assert_eq!(spec["training"]["offload"], json!({"parameters": true, "optimizer": true}));
    assert!(conversion.is_whole(), "{comments}");
}
