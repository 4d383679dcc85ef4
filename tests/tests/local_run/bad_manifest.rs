//! Wrong manifests: refused before anything starts, every problem named with its place in one answer.

use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place, tiny_with};

/// The problems that `rlctl validate -o json` reports for a manifest.
fn problems(manifest: &Value) -> Vec<Value> {
    let place = Place::new();
    let path = place.write(manifest);
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    let ended =
        Ended::of(command.args(["validate", "-o", "json", "-f"]).arg(path).output().unwrap()).expect(2, &[]);
    let verdicts: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(verdicts[0]["valid"], false);
    verdicts[0]["problems"].as_array().unwrap().clone()
}

fn paths(problems: &[Value]) -> Vec<&str> {
    problems.iter().map(|problem| problem["path"].as_str().unwrap()).collect()
}

#[test]
fn an_unknown_field_is_named_at_any_depth_with_what_was_meant() {
    let found = problems(&tiny_with(json!({ "training": { "optimizer": { "learningRat": 0.1 } } })));
    assert_eq!(paths(&found), ["spec.training.optimizer.learningRat"]);
    assert!(found[0]["didYouMean"].as_str().unwrap().contains("learningRate"), "{found:?}");
    let functions = json!([{ "name": "a", "kind": "Exact", "wieght": 1 }]);
    let found = problems(&tiny_with(json!({ "rewards": { "functions": functions }, "modle": {} })));
    assert_eq!(paths(&found).len(), 2, "{found:?}");
    assert!(paths(&found).contains(&"spec.rewards.functions[0].wieght"), "{found:?}");
    assert!(paths(&found).contains(&"spec.modle"), "{found:?}");
}

#[test]
fn a_wrong_type_is_named_with_its_value_and_range() {
    let found = problems(&tiny_with(json!({ "rollout": { "samplesPerPrompt": "eight", "topP": 3 } })));
    assert_eq!(paths(&found), ["spec.rollout.samplesPerPrompt", "spec.rollout.topP"]);
    assert_eq!(found[0]["value"], "eight");
    for problem in &found {
        assert!(problem["allowed"].is_string() && problem["line"].is_u64(), "{problem}");
    }
}

#[test]
fn impossible_arithmetic_is_answered_in_one_go() {
    let changes = json!({
        "model": { "architecture": { "numHeads": 3, "maxPositionEmbeddings": 4 } },
        "training": { "promptsPerStep": 6, "promptsPerUpdate": 4, "maxTokensPerMicroBatch": 5 },
        "rollout": { "samplesPerPrompt": 1 },
        "algorithm": { "kind": "Grpo" }
    });
    let found = problems(&tiny_with(changes.clone()));
    assert!(paths(&found).contains(&"spec.algorithm.kind"), "{found:?}");
    let mut changes = changes;
    changes["algorithm"]["kind"] = json!("GRPO");
    let found = problems(&tiny_with(changes));
    let expected = [
        "spec.model.architecture.numHeads",
        "spec.model.architecture.maxPositionEmbeddings",
        "spec.training.promptsPerUpdate",
        "spec.training.maxTokensPerMicroBatch",
        "spec.rollout.samplesPerPrompt",
    ];
    for path in expected {
        assert!(paths(&found).contains(&path), "{path} is not among {:?}", paths(&found));
    }
}

#[test]
fn the_trainer_itself_refuses_a_wrong_manifest_before_it_touches_a_folder() {
    let place = Place::new();
    let manifest = tiny_with(json!({ "training": { "stepz": 3 }, "rollout": { "topP": 3 } }));
    place.train(&manifest).expect(2, &["2 problem(s)", "spec.training.stepz", "spec.rollout.topP"]);
    assert!(!place.run("").exists());
}

#[test]
fn text_that_is_no_manifest_is_refused_with_its_place() {
    let place = Place::new();
    for text in ["", "[1, 2]", "spec: {model: [}", "\u{0}", "a: &a [*a]"] {
        std::fs::write(place.file("job.yaml"), text).unwrap();
        let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
        let output = command.args(["validate", "-f"]).arg(place.file("job.yaml")).output().unwrap();
        Ended::of(output).expect(2, &["job.yaml"]);
    }
}

#[test]
fn the_last_error_is_written_to_the_termination_message_file() {
    let place = Place::new();
    let words = place.write(&json!({})).with_extension("message");
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command
        .args(["worker", "--manifest", "/nowhere/job.yaml"])
        .env(rlt_api::TERMINATION_MESSAGE_VARIABLE, &words);
    Ended::of(command.output().unwrap()).expect(2, &["/nowhere/job.yaml"]);
    let left = std::fs::read_to_string(words).unwrap();
    assert!(left.contains("/nowhere/job.yaml") && left.contains("No such file"), "{left}");
}
