//! Tests that conversions keep the algorithm: numbers and functions whose meaning differs from their names,
//! and settings that only the other trainers tolerate.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeMap;

use rlt_convert::{Conversion, Launch, Project, convert, launches, launches_of_markdown, launches_of_python};
use serde_json::{Value, json};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Converts settings and checks that the manifest is valid.
fn converted(project: Project, trainer: &str, settings: &str) -> Conversion {
    valid(&Launch::new(project, trainer, &words(settings)))
}

fn valid(launch: &Launch) -> Conversion {
    let conversion = convert(launch, &[], "test").unwrap();
    let problems = rlt_api::validate(&conversion.manifest).err().unwrap_or_default();
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, [""; 0], "{}", conversion.manifest);
    conversion
}

/// Returns the specification of a manifest, and its comments as one text.
fn read(conversion: &Conversion) -> (Value, String) {
    let manifest: Value = serde_saphyr::from_str(&conversion.manifest).unwrap();
    let comments = conversion.manifest.lines().filter_map(|line| line.trim().strip_prefix("# "));
    (manifest["spec"].clone(), comments.collect::<Vec<_>>().join(" "))
}

fn verl(settings: &str) -> (Value, String) {
    let base = "actor_rollout_ref.model.path=org/base data.train_files=/data/gsm8k.parquet \
        algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 data.max_response_length=1024";
    read(&converted(Project::Verl, "main_ppo", &format!("{base} {settings}")))
}

fn trl(trainer: &str, settings: &str) -> (Value, String) {
    let base = "--model_name_or_path org/base --dataset_name org/data";
    read(&converted(Project::Trl, trainer, &format!("{base} {settings}")))
}

fn open_instruct(trainer: &str, settings: &str) -> (Value, String) {
    read(&converted(Project::OpenInstruct, trainer, &format!("--model_name_or_path org/base {settings}")))
}

#[test]
fn cispo_of_trl_caps_the_ratio_itself() {
    let clips = |settings: &str| {
        let (spec, comments) = trl("grpo", &format!("--loss_type cispo {settings}"));
        let loss = &spec["algorithm"]["loss"];
        (loss["policy"].clone(), loss["clipLow"].as_f64(), loss["clipHigh"].as_f64(), comments)
    };
    let (policy, low, high, _) = clips("--epsilon_high 5.0");
    assert_eq!((policy, low, high), ("Cispo".into(), Some(1.0), Some(4.0)));
    // A cap below 1 has no equivalent, so a comment reports it.
    let (_, low, high, comments) = clips("--epsilon 0.2");
    assert_eq!((low, high), (Some(1.0), Some(0.0)));
    assert!(comments.contains("epsilon_high=0.2"), "{comments}");
}

#[test]
fn clips_of_other_losses_of_trl_are_distances_from_one() {
    let (spec, _) = trl("grpo", "--loss_type dapo --epsilon 0.2 --epsilon_high 0.28 --delta 4");
    let loss = &spec["algorithm"]["loss"];
    let clips = ["clipLow", "clipHigh", "dualClip"].map(|field| loss[field].as_f64());
    assert_eq!(clips, [Some(0.2), Some(0.28), Some(4.0)]);
    // Ratios of sequences have no dual clip.
    let (spec, comments) = trl("grpo", "--loss_type grpo --importance_sampling_level sequence --delta 4");
    assert!(spec["algorithm"]["loss"]["dualClip"].is_null() && comments.contains("delta=4"), "{comments}");
}

/// TRL's default loss sums the ratios of sequences over their tokens, of which TRL itself warns.
#[test]
fn a_loss_of_trl_that_weighs_sequences_by_their_length_is_said() {
    let level = "--importance_sampling_level sequence";
    for (loss, words) in [
        ("", "loss_type=dapo weighs the ratios of sequences by their length"),
        ("--loss_type bnpo", "loss_type=bnpo weighs the ratios of sequences by their length"),
        ("--loss_type dr_grpo", "loss_type=dr_grpo weighs the ratios of sequences by their length"),
        ("--loss_type cispo", "loss_type=cispo with ratios of sequences has no equal"),
    ] {
        let (spec, comments) = trl("grpo", &format!("{level} {loss}"));
        assert_eq!(spec["algorithm"]["loss"]["policy"], "Gspo", "{loss}");
        assert_eq!(spec["algorithm"]["loss"]["aggregation"], "SequenceMeanTokenMean", "{loss}");
        assert!(comments.contains(words), "{loss}: {comments}");
    }
    assert!(!trl("grpo", &format!("{level} --loss_type grpo")).1.contains("of sequences"));
    assert!(!trl("grpo", "").1.contains("of sequences"));
}

#[test]
fn cispo_of_open_instruct_has_no_lower_clip() {
    let data = "--dataset_mixer_list org/math 1.0 --loss_fn cispo --clip_lower 0.2 --clip_higher 4";
    let (spec, _) = open_instruct("grpo_fast", data);
    let loss = &spec["algorithm"]["loss"];
    assert_eq!((loss["clipLow"].as_f64(), loss["clipHigh"].as_f64()), (Some(1.0), Some(4.0)));
}

#[test]
fn a_warm_up_of_the_critic_ends_one_step_earlier_than_verls_number() {
    for (given, steps) in [("0", 0), ("1", 0), ("2", 1), ("20", 19)] {
        let settings = format!("algorithm.adv_estimator=gae trainer.critic_warmup={given}");
        assert_eq!(verl(&settings).0["algorithm"]["critic"]["warmupSteps"], steps, "{given}");
    }
}

#[test]
fn a_cosine_with_a_minimum_has_the_minimum_that_is_given() {
    let minimum = |kwargs: &str| {
        let settings = format!("--learning_rate 2e-5 --lr_scheduler_type cosine_with_min_lr {kwargs}");
        let (spec, comments) = trl("sft", &settings);
        (spec["training"]["schedule"]["minRatio"].as_f64(), comments)
    };
    assert_eq!(minimum("--lr_scheduler_kwargs {\"min_lr_rate\":0.25}").0, Some(0.25));
    assert_eq!(minimum("--lr_scheduler_kwargs {\"min_lr\":5e-6}").0, Some(0.25));
    let (ratio, comments) = minimum("");
    assert!(ratio.is_none() && comments.contains("schedule.minRatio"), "{comments}");
    let (ratio, comments) = minimum("--lr_scheduler_kwargs {\"min_lr\":1.0}");
    assert!(ratio.is_none() && comments.contains("falls to 0"), "{comments}");
    let (spec, _) = trl("sft", "--lr_scheduler_type cosine");
    assert!(spec["training"]["schedule"]["minRatio"].is_null());
}

/// Both bounds of verl have their own default.
#[test]
fn one_clip_of_verl_counts_for_the_bounds_that_are_null() {
    let clips = |settings: &[&str]| {
        let settings: Vec<_> = settings.iter().map(|one| format!("actor_rollout_ref.actor.{one}")).collect();
        let (spec, comments) = verl(&settings.join(" "));
        let loss = &spec["algorithm"]["loss"];
        let is_said = comments.contains("has no effect in verl: clip_ratio_low");
        (loss["clipLow"].as_f64(), loss["clipHigh"].as_f64(), is_said)
    };
    assert_eq!(clips(&[]), (Some(0.2), Some(0.2), false));
    assert_eq!(clips(&["clip_ratio=0.3"]), (Some(0.2), Some(0.2), true));
    assert_eq!(clips(&["clip_ratio=0.3", "clip_ratio_high=0.28"]), (Some(0.2), Some(0.28), true));
    let null = ["clip_ratio=0.3", "clip_ratio_low=null", "clip_ratio_high=null"];
    assert_eq!(clips(&null), (Some(0.3), Some(0.3), false));
    assert_eq!(clips(&["clip_ratio_low=0.1", "clip_ratio_high=0.4"]), (Some(0.1), Some(0.4), false));
}

#[test]
fn held_out_rows_that_verl_judges_otherwise_are_said() {
    let said = |file: &str| {
        let (_, comments) = verl(&format!("data.val_files={file}"));
        comments.contains("here those of the training files judge them")
    };
    assert!(said("/data/aime-2024.parquet") && said("/data/math500/test.parquet"));
    assert!(!said("/data/gsm8k/test.parquet") && !said("/data/mine.parquet"));
}

#[test]
fn an_aggregation_that_verl_passes_over_is_said() {
    for (mode, policy) in [("gspo", "Gspo"), ("sapo", "Sapo"), ("geo_mean", "GeoMean")] {
        let loss = format!("actor_rollout_ref.actor.policy_loss.loss_mode={mode}");
        let (spec, comments) = verl(&format!("{loss} actor_rollout_ref.actor.loss_agg_mode=token-mean"));
        assert_eq!(spec["algorithm"]["loss"]["policy"], policy);
        assert_eq!(spec["algorithm"]["loss"]["aggregation"], "SequenceMeanTokenMean");
        assert!(comments.contains("loss_agg_mode=token-mean has no effect"), "{comments}");
        let (_, comments) =
            verl(&format!("{loss} actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"));
        assert!(!comments.contains("loss_agg_mode"), "{comments}");
        assert!(!verl(&loss).1.contains("loss_agg_mode"));
    }
}

/// TRL gives a weight to every name. Its penalty on length begins after 1024 tokens and is full at 1280.
#[test]
fn the_penalty_on_length_of_trl_keeps_its_weight_start_and_slope() {
    let rewards = |max_tokens: u32| {
        let settings = "--reward_funcs accuracy_reward get_soft_overlong_punishment think_format_reward \
            --reward_weights 1.0 0.5 0.25";
        let (spec, comments) = trl("grpo", &format!("{settings} --max_completion_length {max_tokens}"));
        let weights = spec["rewards"]["functions"].as_array().unwrap();
        let weights: Vec<f64> = weights.iter().map(|function| function["weight"].as_f64().unwrap()).collect();
        assert_eq!(weights, [1.0, 0.25]);
        (spec["rewards"]["overlong"].clone(), comments)
    };
    let (overlong, comments) = rewards(1024);
    assert!(overlong.is_null() && comments.contains("no completion of this script reaches"), "{comments}");
    for (max_tokens, buffer, factor) in [(1152, 128, 0.25), (1280, 256, 0.5), (4096, 256, 0.5)] {
        let (overlong, comments) = rewards(max_tokens);
        assert_eq!(overlong["bufferTokens"], buffer, "{max_tokens}");
        assert_eq!(overlong["penaltyFactor"].as_f64(), Some(factor), "{max_tokens}");
        assert_eq!(comments.contains("here it ends at maxCompletionTokens"), max_tokens > 1280, "{comments}");
    }
    let (spec, _) = trl("grpo", "--reward_funcs accuracy_reward --reward_weights 0.5");
    assert_eq!(spec["rewards"]["functions"][0]["weight"], 0.5);
}

#[test]
fn rewards_say_where_they_differ_from_the_other_trainers() {
    let kinds = |spec: &Value| -> Vec<String> {
        let functions = spec["rewards"]["functions"].as_array().unwrap();
        functions.iter().map(|function| function["kind"].as_str().unwrap().to_owned()).collect()
    };
    let (spec, comments) = trl("grpo", "--reward_funcs accuracy_reward think_format_reward");
    assert_eq!(kinds(&spec), ["Math", "Format"]);
    assert!(comments.contains("math-verify") && comments.contains("\\boxed{} with those"), "{comments}");
    assert_eq!(spec["data"]["groundTruthKey"], "solution");
    let (spec, _) = trl("grpo", "--reward_funcs think_format_reward");
    assert!(spec["data"]["groundTruthKey"].is_null());
    let (spec, comments) = open_instruct("grpo_fast", "--dataset_mixer_list org/gsm8k_ground_truth 1.0");
    assert_eq!(kinds(&spec), ["Gsm8kFlexible"]);
    assert!(comments.contains("the verifier gsm8k"), "{comments}");
    let (spec, _) = open_instruct("grpo_fast", "--dataset_mixer_list org/RLVR-GSM 1.0 org/RLVR-MATH 1.0");
    assert_eq!(kinds(&spec), ["Gsm8kFlexible", "Math"]);
    assert_eq!(spec["rewards"]["functions"][1]["dataSources"], json!(["math", "MATH"]));
    let (spec, comments) = verl("data.train_files=/data/geo3k/train.parquet");
    assert_eq!(kinds(&spec), ["Math", "Format"]);
    assert_eq!(spec["rewards"]["functions"][0]["weight"], 0.9);
    assert!(comments.contains("mathruler"), "{comments}");
}

/// verl's own table: the `Answer:` line with +1 and -1, and the boxed answer as a text.
#[test]
fn mathematics_is_scored_as_verl_scores_its_data_source() {
    for (file, name, kind) in [
        ("/data/dapo-math-17k.parquet", "math_dapo", "MathDapo"),
        ("/data/DAPO-Math-17k/data/train.parquet", "math_dapo", "MathDapo"),
        ("/data/math/train.parquet", "math", "MathStrict"),
    ] {
        let (spec, comments) = verl(&format!("data.train_files={file}"));
        assert_eq!(spec["rewards"]["functions"], json!([{"name": name, "kind": kind}]), "{comments}");
    }
    let (spec, _) = verl("data.train_files=[/data/gsm8k.parquet,/data/dapo-math-17k.parquet]");
    let functions = spec["rewards"]["functions"].as_array().unwrap();
    assert_eq!(functions[1]["dataSources"], json!(["math_dapo", "math_dapo_reasoning", "math"]));
}

/// If a file's name only contains the name of a data source, or of none, its reward is a guess.
#[test]
fn a_reward_that_is_guessed_from_the_name_of_a_file_is_said() {
    for (files, kind, guessed) in [
        ("/data/math/train.parquet", "MathStrict", None),
        ("/data/MATH-lighteval.parquet", "MathStrict", None),
        ("/data/gsm8k/train.parquet", "Gsm8k", None),
        ("/data/aime-2024.parquet", "MathDapo", None),
        ("/data/openr1-math/train.parquet", "MathStrict", Some("/data/openr1-math/train.parquet")),
        ("/data/deepmath103k.parquet", "MathStrict", Some("deepmath103k")),
        ("[/data/gsm8k.parquet,/data/orca.parquet]", "Gsm8k", Some("/data/orca.parquet")),
        ("[/data/geo3k.parquet,/data/deepmath.parquet]", "Math", Some("/data/deepmath.parquet")),
    ] {
        let (spec, comments) = verl(&format!("data.train_files={files}"));
        assert_eq!(spec["rewards"]["functions"][0]["kind"], kind, "{files}");
        match guessed {
            Some(name) => assert!(
                comments.contains("chooses a function by data_source, which the name of")
                    && comments.contains(name),
                "{comments}"
            ),
            None => assert!(!comments.contains("data_source"), "{comments}"),
        }
    }
    let (spec, comments) = verl("data.train_files=/data/numina_aops_forum.parquet");
    assert_eq!(spec["rewards"]["functions"], json!([{"name": "numina", "kind": "Math"}]));
    assert!(comments.contains("prime_math") && !comments.contains("the name of"), "{comments}");
}

#[test]
fn data_sources_that_are_no_mathematics_are_not_judged_by_math() {
    for (file, kind, difference) in [
        ("/data/codecontests/train.parquet", "Code", "sends them to a server"),
        ("/data/searchR1_processed_direct/train.parquet", "Server", "search_r1_like_qa_em"),
    ] {
        let (spec, comments) = verl(&format!("data.train_files={file}"));
        assert_eq!(spec["rewards"]["functions"][0]["kind"], kind);
        assert!(spec["rewards"]["functions"][0]["server"]["url"].is_string(), "{file}");
        assert!(comments.contains(difference), "{comments}");
    }
}

#[test]
fn a_reward_model_that_trl_loads_by_its_name_is_one_here() {
    let program =
        "GRPOTrainer(model=\"org/base\", reward_funcs=\"org/rm\")\ndata = load_dataset(\"org/data\")\n";
    let (launches, _) = launches_of_python(program, &[]).unwrap();
    let (spec, _) = read(&valid(&launches[0]));
    let model = json!({"name": "reward_model", "kind": "Model", "model": {"hub": {"repo": "org/rm"}}});
    assert_eq!(spec["rewards"]["functions"], json!([model]));
}

#[test]
fn the_best_checkpoint_is_kept_where_rewards_are_compared() {
    let best = "--load_best_model_at_end --metric_for_best_model";
    let evaluated = "--eval_strategy steps --eval_steps 5 --reward_funcs accuracy_reward";
    let (spec, comments) = trl("grpo", &format!("{evaluated} {best} eval_reward"));
    assert_eq!(spec["checkpoint"]["keepBest"], true);
    assert!(!comments.contains("load_best_model_at_end"), "{comments}");
    let (spec, comments) = trl("grpo", &format!("{evaluated} {best} loss"));
    assert_eq!(spec["checkpoint"]["keepBest"], true);
    assert!(comments.contains("chooses by loss"), "{comments}");
    let (spec, comments) = trl("sft", &format!("{best} eval_loss"));
    assert!(spec["checkpoint"].is_null() && comments.contains("compares rewards"), "{comments}");
}

/// Settings that verl's trainer accepts, the resulting fields of the manifest, and the text of its comment.
#[test]
fn settings_that_verl_tolerates_become_a_valid_manifest_with_a_comment() {
    let actor = "actor_rollout_ref.actor";
    let cases: [(&str, &str, Value, &str); 14] = [
        ("actor_rollout_ref.actor.clip_ratio_c=10000", "/algorithm/loss/dualClip", Value::Null, "10000"),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=cispo actor_rollout_ref.actor.clip_ratio_low=10",
            "/algorithm/loss/clipLow",
            json!(1.0),
            "a lower clip of 10 becomes clipLow 1",
        ),
        (
            "actor_rollout_ref.actor.clip_ratio_high=5000",
            "/algorithm/loss/clipHigh",
            json!(1000.0),
            "an upper clip of 5000",
        ),
        (
            "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.ref.fsdp_config.param_offload=True",
            "/training/roles",
            Value::Null,
            "the role has the actor's base weights",
        ),
        (
            "actor_rollout_ref.model.enable_activation_offload=True",
            "/training/activationCheckpointing",
            json!(true),
            "offload.activations needs it",
        ),
        (
            "actor_rollout_ref.model.enable_activation_offload=True \
             actor_rollout_ref.model.enable_gradient_checkpointing=False",
            "/training/offload",
            Value::Null,
            "they stay on the device",
        ),
        ("actor_rollout_ref.rollout.n=1", "/rollout/samplesPerPrompt", json!(2), "a group of one sample"),
        (
            "data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=0",
            "/training/promptsPerUpdate",
            json!(512),
            "promptsPerUpdate is 512",
        ),
        (
            "data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=100",
            "/training/promptsPerUpdate",
            json!(64),
            "promptsPerUpdate is 64",
        ),
        (
            "critic.model.fsdp_config.param_offload=True",
            "/training/roles",
            Value::Null,
            "settings of a critic have no effect",
        ),
        (
            "actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
            "/training/schedule",
            Value::Null,
            "the schedule is constant",
        ),
        (
            "actor_rollout_ref.actor.optim.lr_warmup_steps=10 trainer.total_training_steps=10",
            "/training/schedule/warmupSteps",
            json!(9),
            "is cut to 9",
        ),
        (
            "actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.n=32",
            "/rollout/heldOut/samplesPerPrompt",
            Value::Null,
            "would be equal at temperature 0",
        ),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000",
            "/training/maxTokensPerMicroBatch",
            json!(1536),
            "does not hold the longest sequence",
        ),
    ];
    for (settings, pointer, expected, remark) in cases {
        let (spec, comments) = verl(settings);
        let found = spec.pointer(pointer).cloned().unwrap_or(Value::Null);
        assert_eq!(found, expected, "{settings}");
        assert!(comments.contains(remark), "{settings}: {comments}");
    }
    let degrees = format!("trainer.n_gpus_per_node=4 {actor}.ulysses_sequence_parallel_size=8");
    let (spec, comments) = verl(&format!("{degrees} actor_rollout_ref.rollout.tensor_model_parallel_size=8"));
    let mesh = &spec["workers"]["mesh"];
    assert_eq!((&mesh["sp"], &mesh["rolloutTp"]), (&json!(4), &json!(4)), "{comments}");
    assert!(comments.contains("8 does not divide 4 ranks"), "{comments}");
}

#[test]
fn the_losses_of_cpo_kto_and_online_dpo_are_those_of_trl() {
    let alpha_po = "--loss_type alphapo --alpha 0.3 --cpo_alpha 1";
    for (trainer, settings, field, value) in [
        ("cpo", "--loss_type sigmoid", "loss", Value::Null),
        ("cpo", "--loss_type hinge", "loss", json!("CpoHinge")),
        ("cpo", "--loss_type ipo", "loss", json!("CpoIpo")),
        ("cpo", "--loss_type simpo", "sftWeight", json!(1.0)),
        ("cpo", "--loss_type simpo --cpo_alpha 0", "sftWeight", json!(0.0)),
        ("cpo", alpha_po, "loss", json!("AlphaPo")),
        ("cpo", alpha_po, "alphaPoAlpha", json!(0.3)),
        ("cpo", alpha_po, "sftWeight", json!(0.0)),
        ("cpo", "--loss_type alphapo", "loss", Value::Null),
        ("cpo", "--loss_type simpo --alpha 0.3", "loss", json!("AlphaPo")),
        ("cpo", "--loss_type simpo --alpha 0.3", "sftWeight", json!(1.0)),
        ("kto", "--loss_type apo_zero_unpaired", "referencePoint", json!(false)),
        ("online_dpo", "--loss_type ipo --reward_model_path org/rm", "loss", json!("Ipo")),
    ] {
        let (spec, _) = trl(trainer, settings);
        assert_eq!(spec["algorithm"]["preference"][field], value, "{trainer} {settings}");
    }
    for (trainer, settings, remark) in [
        ("cpo", "--alpha 0.3", "alpha=0.3 has no equal"),
        ("cpo", "--loss_type other", "loss_type=other has no equal"),
        ("kto", "--loss_type other", "loss_type=other has no equal"),
        ("online_dpo", "--loss_type ipo --reward_model_path org/rm", "sums of log-probs"),
        ("sft", "--loss_type dft", "loss_type=dft weighs tokens"),
    ] {
        let (_, comments) = trl(trainer, settings);
        assert!(comments.contains(remark), "{trainer} {settings}: {comments}");
    }
}

/// If the converter replaces an unknown name by another one, a comment reports it.
#[test]
fn a_choice_without_an_equal_is_said() {
    let rewarded = "--reward_funcs accuracy_reward";
    let mixed = "--dataset_mixer_list org/data 1.0";
    for ((_, comments), choice) in [
        (trl("grpo", &format!("{rewarded} --importance_sampling_level other")), "importance_sampling_level"),
        (trl("grpo", &format!("{rewarded} --scale_rewards other")), "scale_rewards"),
        (
            verl("algorithm.filter_groups.enable=True algorithm.filter_groups.metric=other"),
            "filter_groups.metric",
        ),
        (open_instruct("grpo_fast", &format!("{mixed} --loss_fn other")), "loss_fn"),
        (
            open_instruct("grpo_fast", &format!("{mixed} --advantage_normalization_type other")),
            "advantage_normalization_type",
        ),
    ] {
        assert!(comments.contains(&format!("{choice}=other has no equal")), "{comments}");
    }
}

#[test]
fn the_longest_prompt_of_earlier_versions_of_trl_is_kept() {
    let (spec, _) = trl("grpo", "--reward_funcs accuracy_reward --max_prompt_length 256");
    let data = &spec["data"];
    assert_eq!((&data["maxPromptTokens"], &data["overlongPrompts"]), (&json!(256), &json!("TruncateLeft")));
    let (spec, comments) = trl("dpo", "--max_length 1024 --max_prompt_length 256");
    assert_eq!(
        (&spec["data"]["maxPromptTokens"], &spec["rollout"]["maxCompletionTokens"]),
        (&json!(256), &json!(768))
    );
    assert!(!comments.contains("a guess"), "{comments}");
    let (spec, comments) = trl("dpo", "--max_length 1024");
    assert_eq!(spec["data"]["maxPromptTokens"], 512);
    assert!(comments.contains("a guess"), "{comments}");
}

#[test]
fn the_margin_of_simpo_in_open_instruct_is_a_multiple_of_beta() {
    let margin = |settings: &str| {
        let settings = format!("--dataset_mixer_list org/data 1.0 --loss_type simpo {settings}");
        open_instruct("dpo_tune_cache", &settings).0["algorithm"]["preference"]["simpoGamma"].as_f64()
    };
    assert_eq!(margin("--beta 2 --gamma_beta_ratio 0.25"), Some(0.5));
    assert_eq!(margin(""), Some(1.5));
}

#[test]
fn a_reference_that_nothing_reads_is_not_moved() {
    let (spec, comments) = trl("grpo", "--reward_funcs accuracy_reward --sync_ref_model True");
    assert!(spec["algorithm"]["referenceSync"].is_null());
    assert!(comments.contains("there is no reference"), "{comments}");
}

#[test]
fn parameters_of_other_losses_are_left_out_and_named_once() {
    for (settings, setting, field) in [
        ("--loss_type ipo --label_smoothing 0.1", "label_smoothing=0.1", "labelSmoothing"),
        ("--loss_type hinge --discopop_tau 0.1", "discopop_tau=0.1", "discopopTau"),
        (
            "--f_divergence_type js_divergence --f_alpha_divergence_coef 0.5",
            "f_alpha_divergence_coef=0.5",
            "divergenceAlpha",
        ),
    ] {
        let (spec, comments) = trl("dpo", settings);
        assert!(spec["algorithm"]["preference"][field].is_null(), "{settings}");
        let named = format!("{setting} has no equal: algorithm.preference.{field} refuses it");
        assert_eq!(comments.matches(&named).count(), 1, "{settings}: {comments}");
        assert_eq!(comments.matches(setting).count(), 1, "{settings}: {comments}");
    }
    let (spec, comments) = trl("dpo", "--f_divergence_type alpha_divergence --f_alpha_divergence_coef 0.5");
    assert_eq!(spec["algorithm"]["preference"]["divergenceAlpha"], 0.5);
    assert!(!comments.contains("divergence"), "{comments}");
}

#[test]
fn values_that_turn_a_setting_off_elsewhere_and_long_names_become_valid_ones() {
    let function = "f".repeat(70);
    let settings = format!("--reward_funcs mine.{function} --temperature 0 --top_k -1 --max_grad_norm 0");
    let (spec, comments) = trl("grpo", &settings);
    assert_eq!(spec["rewards"]["functions"][0]["name"], function[..60]);
    assert_eq!(spec["rollout"]["temperature"], 0.01);
    assert_eq!(spec["rollout"]["topK"].as_f64(), Some(0.0));
    assert_eq!(spec["training"]["maxGradNorm"].as_f64(), Some(1e6));
    assert!(comments.contains("a gradient norm of 0 is no bound"), "{comments}");
}

#[test]
fn configurations_of_trl_in_python_are_launches() {
    let page = "# Papers\n\n```python\nfrom trl import GRPOConfig, GRPOTrainer\n\nargs = GRPOConfig(\n    loss_type=\"cispo\",\n    \
        epsilon_high=5.0,  # the cap (of the ratio)\n    num_generations=16,\n    beta=0.0,\n)\ntrainer = GRPOTrainer(..., args=args)\n```\n\n\
        ```python\nargs = GMPOConfig(epsilon=0.4, beta=0.0)\n```\n\n```python\nargs = GKDConfig(lmbda=0.5)\n```\n\n\
        ```bash\ntrl dpo --model_name_or_path org/base --dataset_name org/pairs\n```\n";
    let further = words("--model_name_or_path org/base --dataset_name org/data");
    let (launches, _) = launches_of_markdown(page, &BTreeMap::new(), &further).unwrap();
    let trainers: Vec<_> = launches.iter().map(|launch| launch.trainer.as_str()).collect();
    assert_eq!(trainers, ["grpo", "gmpo", "dpo"]);
    let (spec, _) = read(&valid(&launches[0]));
    assert_eq!(spec["algorithm"]["loss"]["clipHigh"], 4.0);
    assert_eq!(spec["rollout"]["samplesPerPrompt"], 16);
    let (spec, _) = read(&valid(&launches[1]));
    assert_eq!(spec["algorithm"]["loss"]["policy"], "GeoMean");
    let program = "data = load_dataset(\"org/data\", split=\"train\")\ntrainer = RLOOTrainer(\n    model=\"org/base\",\n    \
        reward_funcs=[accuracy_reward, brevity],\n    train_dataset=data,\n    peft_config=LoraConfig(r=8, lora_alpha=16),\n)\n";
    let (launches, _) = launches_of_python(program, &[]).unwrap();
    let (spec, comments) = read(&valid(&launches[0]));
    assert_eq!((&spec["algorithm"]["kind"], &spec["model"]["lora"]["rank"]), (&json!("RLOO"), &json!(8)));
    assert_eq!(spec["data"]["datasets"][0]["hub"], json!({"repo": "org/data", "split": "train"}));
    assert!(comments.contains("brevity is Python"), "{comments}");
    assert!(launches_of_python("print(1)", &[]).is_err());
}

/// verl's two supervised trainers have optimizers with different defaults.
#[test]
fn the_optimizers_of_both_supervised_trainers_of_verl_have_their_defaults() {
    let training = |trainer: &str, further: &str| {
        let settings = format!("model.path=org/base data.train_files=/data/a.parquet {further}");
        read(&converted(Project::Verl, trainer, &settings)).0["training"].clone()
    };
    let older = training("fsdp_sft_trainer", "");
    let schedule = json!({"kind": "Cosine", "warmupRatio": 0.1});
    assert_eq!((&older["optimizer"]["betas"], &older["schedule"]), (&json!([0.9, 0.95]), &schedule));
    assert_eq!(older["optimizer"]["learningRate"].as_f64(), Some(1e-5));
    let given =
        "optim.lr=1e-4 optim.betas=[0.9,0.98] optim.lr_scheduler=constant optim.lr_warmup_steps_ratio=0.2";
    let older = training("fsdp_sft_trainer", given);
    let schedule = json!({"kind": "Constant", "warmupRatio": 0.2});
    assert_eq!((&older["optimizer"]["betas"], &older["schedule"]), (&json!([0.9, 0.98]), &schedule));
    let newer = training("sft_trainer", "");
    assert_eq!(newer["optimizer"]["learningRate"].as_f64(), Some(1e-3));
    assert!(newer["optimizer"]["betas"].is_null() && newer["schedule"].is_null(), "{newer}");
}

#[test]
fn ppo_of_open_instruct_is_ppo() {
    let settings = "--dataset_mixer {\"org/RLVR-GSM\":1.0} --dataset_train_splits train --local_rollout_batch_size 4 \
        --local_mini_batch_size 2 --actor_num_gpus_per_node 2 2 --number_samples_per_prompt 1 --total_episodes 1600 \
        --beta 0.05 --learning_rate 3e-7 --reward_model_path org/rm --reward_model_multiplier 0.0";
    let (spec, comments) = open_instruct("ppo_vllm_thread_ray_gtrl", settings);
    assert_eq!(
        (&spec["algorithm"]["kind"], &spec["algorithm"]["kl"]["placement"]),
        (&json!("PPO"), &json!("Reward"))
    );
    assert_eq!(spec["algorithm"]["advantage"]["lambda"], 0.95);
    let batches = ["promptsPerStep", "promptsPerUpdate", "epochsPerBatch", "steps"]
        .map(|field| &spec["training"][field]);
    assert_eq!(batches, [&json!(16), &json!(8), &json!(4), &json!(100)]);
    // In open-instruct, too, a reward model with the factor 0 has no effect.
    assert_eq!(spec["rewards"]["functions"].as_array().unwrap().len(), 1, "{comments}");
    assert_eq!(spec["data"]["datasets"][0]["hub"]["repo"], "org/RLVR-GSM");
}

#[test]
fn scripts_that_submit_a_settings_file_start_its_trainer() {
    let script = "python scripts/submit_finetune_job.py --config=configs/own.yaml --learning_rate 1e-6\n";
    let (launches, _) = launches(script, &BTreeMap::new(), &[]).unwrap();
    assert_eq!(launches[0].files, ["configs/own.yaml"]);
    let file = "model_name_or_path: org/base\ndataset_mixer:\n  org/sft.v2: 0.5\n  org/other: 1.0\nlearning_rate: 2.0e-5\n";
    let conversion = convert(&launches[0], &[file.to_owned()], "test").unwrap();
    let (spec, comments) = read(&conversion);
    assert_eq!(spec["algorithm"]["kind"], "SFT");
    assert_eq!(spec["training"]["optimizer"]["learningRate"], 1e-6);
    assert_eq!(spec["data"]["datasets"][0]["hub"]["repo"], "org/sft.v2");
    assert!(comments.contains("takes 0.5 of org/sft.v2"), "{comments}");
    let (spec, _) = open_instruct("finetune", "--train_file data/own.jsonl");
    assert_eq!(spec["data"]["datasets"][0]["files"], json!(["data/own.jsonl"]));
}
