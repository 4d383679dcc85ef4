//! Tests of the output of `rlctl plan`: the page, its machine-readable form, and its objects. Plans for a GPU
//! are in `machines`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{ARITHMETIC, rlctl, stderr, stdout};

#[test]
fn a_missing_manifest_is_named() {
    let output = rlctl(&["plan", "/nowhere/job.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).starts_with("read manifest /nowhere/job.yaml: No such file"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_plan_is_one_page() {
    let output = rlctl(&["plan", ARITHMETIC]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn the_plan_shows_the_rollout_tp_degree_and_traffic_between_workers() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("job.yaml");
    let workers = "\n  workers: {count: 2, ranksPerWorker: 2, device: Cpu, mesh: {sp: 2, rolloutTp: 4}}\n";
    fs::write(
        &manifest,
        include_str!("../../../../crds/tests/fixtures/arithmetic.yaml").to_owned() + workers,
    )
    .unwrap();
    let plan = stdout(&rlctl(&["plan", manifest.to_str().unwrap()]));
    assert!(plan.contains("dp_replicate 2 x dp_shard 1 x sp 2, rollout tp 4"), "{plan}");
    assert!(plan.contains("2 x 2 ranks, Cpu"), "{plan}");
    assert!(plan.contains("mesh.rolloutTp 4 exchanges between workers"), "{plan}");
    assert!(!plan.contains("mesh.sp 2 exchanges"), "it stays within a worker: {plan}");
}

#[test]
fn the_plan_says_what_follows_from_failures() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("job.yaml");
    let rules = "\n  runPolicy: {failurePolicy: {maxRestarts: 5, rules: [\n    \
                 {name: licences, action: Restart, onExitCodes: {operator: In, values: [42, 43]}},\n    \
                 {action: Ignore, avoidNode: true, onCauses: [Signalled], onReasons: [Error]}]}}\n";
    fs::write(&manifest, include_str!("../../../../crds/tests/fixtures/arithmetic.yaml").to_owned() + rules)
        .unwrap();
    let plan = stdout(&rlctl(&["plan", manifest.to_str().unwrap()]));
    let says = |name: &str, words: &str| {
        plan.lines().any(|line| line.trim_start().starts_with(name) && line.ends_with(words))
    };
    assert!(says("licences ", "exit code 42, 43 -> starts again, 5 times without a checkpoint"), "{plan}");
    let words =
        "reason Error and cause Signalled -> starts again, which counts for nothing, on other nodes first";
    assert!(says("rules[1] ", words), "{plan}");
}

#[test]
fn the_plan_for_programs_holds_the_resolved_specification() {
    let output = rlctl(&["plan", ARITHMETIC, "-o", "json"]);
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(plan["batch"]["promptsPerStep"], plan["spec"]["training"]["promptsPerStep"]);
    assert_eq!(plan["spec"]["algorithm"]["loss"]["policy"], "Vanilla");
    assert!(plan["memory"]["peakBytes"].is_u64());
}

#[test]
fn the_objects_for_kubectl_are_those_that_the_plan_names() {
    let yaml = stdout(&rlctl(&["plan", ARITHMETIC, "-o", "yaml"]));
    let kinds: Vec<_> = yaml.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    assert_eq!(kinds, ["ServiceAccount", "ConfigMap", "NetworkPolicy", "Pod"]);
    let plan: Value = serde_json::from_str(&stdout(&rlctl(&["plan", ARITHMETIC, "-o", "json"]))).unwrap();
    let named: Vec<_> =
        plan["objects"].as_array().unwrap().iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(named, kinds);
    assert_eq!(plan["objects"][3]["spec"]["containers"][0]["image"], "rlt.local/rlt-trainer:dev");
}

#[test]
fn a_model_elsewhere_is_planned_from_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (manifest, config) = (folder.path().join("job.yaml"), folder.path().join("config.json"));
    let job = "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {name: hub}\nspec:\n  \
               model: {hub: {repo: a/b}}\n  data: {train: [a.jsonl]}\n  algorithm: {kind: SFT}\n";
    fs::write(&manifest, job).unwrap();
    let shape = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "tie_word_embeddings": true}"#;
    fs::write(&config, shape).unwrap();
    let without = rlctl(&["plan", manifest.to_str().unwrap()]);
    assert!(stdout(&without).contains("--model-config"));
    let with = rlctl(&["plan", manifest.to_str().unwrap(), "--model-config", config.to_str().unwrap()]);
    assert!(stdout(&with).contains("134515008 (134515008 trained)"), "{}", stdout(&with));
}

#[test]
fn a_classifier_is_planned_as_the_model_of_a_job_that_trains_one_and_as_a_reward_model() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, classifier) = (folder.path().join("policy"), folder.path().join("classifier"));
    let write = |model: &Path, class: &str, labels: &str| {
        let shape = r#""hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152"#;
        fs::create_dir_all(model).unwrap();
        fs::write(
            model.join("config.json"),
            format!(r#"{{"architectures": ["{class}"], {labels} {shape}}}"#),
        )
        .unwrap();
    };
    write(&policy, "LlamaForCausalLM", "\"tie_word_embeddings\": true,");
    let two = r#""id2label": {"0": "LABEL_0", "1": "LABEL_1"},"#;
    let plan = |model: &Path, class: &str, algorithm: &str, rewards: &str| {
        let labels = if class.contains("Token") { two } else { r#""id2label": {"0": "LABEL_0"},"# };
        write(&classifier, class, labels);
        let manifest = folder.path().join("job.yaml");
        let (model, judge) = (model.display(), classifier.display());
        let rewards = rewards.replace("JUDGE", &judge.to_string());
        let job = format!(
            "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: judges}}\nspec:\n  \
             model: {{path: \"{model}\"}}\n  data: {{train: [a.jsonl]}}\n  algorithm: {{kind: {algorithm}}}\n{rewards}"
        );
        fs::write(&manifest, job).unwrap();
        rlctl(&["plan", manifest.to_str().unwrap()])
    };
    let (whole, by_steps) = ("LlamaForSequenceClassification", "LlamaForTokenClassification");
    for (class, algorithm, count) in [
        // 134515008 parameters below the head, and a head of one row, or of two rows with biases.
        (whole, "RewardModel", "134515584 (134515584 trained)"),
        (by_steps, "ProcessReward", "134516162 (134516162 trained)"),
    ] {
        for model in [&classifier, &policy] {
            let planned = plan(model, class, algorithm, "");
            assert!(stdout(&planned).contains(count), "{} {}", stdout(&planned), stderr(&planned));
        }
        let judged = "  rewards: {functions: [{name: judge, kind: Model, model: {path: \"JUDGE\"}}]}\n";
        let planned = plan(&policy, class, "PPO", judged);
        assert_eq!(planned.status.code(), Some(0), "{}", stderr(&planned));
        assert!(stdout(&planned).contains("reward model"), "{}", stdout(&planned));
    }
    for (class, algorithm) in [(whole, "SFT"), (by_steps, "RewardModel")] {
        let refused = plan(&classifier, class, algorithm, "");
        assert_ne!(refused.status.code(), Some(0));
        assert!(stderr(&refused).contains(class), "{}", stderr(&refused));
    }
}
