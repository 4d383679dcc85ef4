//! Data that cannot be trained on: refused with the file and the row.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Ended, Place, tiny_with};

const GOOD: &str = r#"{"data_source": "sums", "prompt": "1+1=", "reward_model": {"ground_truth": "2"}}"#;

/// Trains on a file `rows.jsonl` of these lines.
fn train(place: &Place, lines: &[&str]) -> Ended {
    let path = place.file("rows.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    place.train(&tiny_with(json!({ "data": { "task": null, "train": [path] } })))
}

#[test]
fn rows_of_a_file_are_trained_on() {
    let place = Place::new();
    train(&place, &[GOOD, GOOD]).expect(0, &[]);
    assert_eq!(place.steps().len(), 3);
}

#[test]
fn a_missing_file_is_named() {
    let place = Place::new();
    place
        .train(&tiny_with(json!({ "data": { "task": null, "train": [place.file("nothing.jsonl")] } })))
        .expect(78, &["nothing.jsonl"]);
}

#[test]
fn an_empty_data_set_is_refused() {
    train(&Place::new(), &[]).expect(78, &["train", "no rows"]);
    train(&Place::new(), &["", ""]).expect(78, &["train", "no rows"]);
}

#[test]
fn a_data_set_that_is_empty_after_the_filter_says_so() {
    let long = r#"{"data_source": "sums", "prompt": "1+1+1+1+1=", "reward_model": {"ground_truth": "5"}}"#;
    train(&Place::new(), &[long]).expect(78, &["no rows", "1 were longer"]);
}

#[test]
fn rows_that_are_left_out_are_counted_wherever_a_run_is_looked_at() {
    let long = r#"{"data_source": "sums", "prompt": "1+1+1+1+1=", "reward_model": {"ground_truth": "5"}}"#;
    let place = Place::new();
    train(&place, &[GOOD, GOOD, long])
        .expect(0, &["this run leaves out 1 of 3 training prompts", "data.maxPromptTokens"]);
    let read = |name: &str| fs::read_to_string(place.run(name)).unwrap();
    let result: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert!(result["data_warnings"][0].as_str().unwrap().contains("1 of 3"), "{result}");
    assert!(read("report.html").contains("This run leaves out 1 of 3 training prompts"));
    for step in place.steps() {
        assert_eq!((&step["data/num_filtered"], &step["data/num_truncated"]), (&json!(1.0), &Value::Null));
    }
}

#[test]
fn streamed_rows_that_are_left_out_are_counted_once_in_each_pass() {
    let long = r#"{"data_source": "sums", "prompt": "1+1+1+1+1=", "reward_model": {"ground_truth": "5"}}"#;
    let place = Place::new();
    let path = place.file("rows.jsonl");
    fs::write(&path, [GOOD, long, GOOD].join("\n")).unwrap();
    let data = json!({ "task": null, "train": [path], "shuffle": false, "streaming": { "blockRows": 2 } });
    place
        .train(&tiny_with(json!({ "data": data })))
        .expect(0, &["this run leaves out 3 of 9 streamed rows: they are longer"]);
    // A step takes two prompts, which is one pass over the rows.
    let filtered = place.steps().into_iter().map(|step| step["data/num_filtered"].clone());
    assert_eq!(filtered.collect::<Vec<_>>(), [json!(1.0), json!(2.0), json!(3.0)]);
}

/// Expects the run's only warning about its rows in `result.json`.
#[track_caller]
fn expect_data_warning(place: &Place, warning: &str) {
    let result: Value = serde_json::from_str(&fs::read_to_string(place.run("result.json")).unwrap()).unwrap();
    assert_eq!(result["data_warnings"], json!([warning]));
}

#[test]
fn rows_that_repeat_within_a_step_are_counted_in_memory_and_streamed() {
    let streaming = json!({ "blockRows": 2 });
    for (streaming, warning) in [
        (Value::Null, "repeats training prompts within a step: there are 1, and a step takes 2"),
        (streaming, "repeats rows within a step: the first step takes 2 rows and has 1 without repetition"),
    ] {
        let place = Place::new();
        let path = place.file("rows.jsonl");
        fs::write(&path, GOOD).unwrap();
        let data = json!({ "task": null, "train": [path], "streaming": streaming });
        place.train(&tiny_with(json!({ "data": data }))).expect(0, &[&format!("this run {warning}")]);
        expect_data_warning(&place, warning);
        assert_eq!(place.steps().len(), 3);
        for step in place.steps() {
            assert_eq!(step["data/num_repeated"], json!(1.0));
        }
    }
}

#[test]
fn a_cold_start_with_fewer_rows_than_its_steps_take_warns_of_it() {
    let row = r#"{"data_source": "sums", "prompt": "1+1=", "response": "2", "reward_model": {"ground_truth": "2"}}"#;
    let place = Place::new();
    let path = place.file("rows.jsonl");
    fs::write(&path, [row, row].join("\n")).unwrap();
    let warning = "repeats demonstrations within a step: there are 2, and a step of the cold start takes 5";
    let changes = json!({
        "data": { "task": null, "train": [path] },
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } }
    });
    place.train(&tiny_with(changes)).expect(0, &[&format!("this run {warning}")]);
    expect_data_warning(&place, warning);
    let repeated = place.metrics().into_iter().filter(|line| line["training/phase"] == 0);
    assert_eq!(repeated.map(|line| line["data/num_repeated"].clone()).collect::<Vec<_>>(), [3.0, 3.0]);
    assert!(place.steps().iter().all(|step| step["data/num_repeated"].is_null()));
}

#[test]
fn a_malformed_row_is_named_by_file_and_number() {
    for bad in ["{\"prompt\": ", "17", "{\"question\": \"1+1=\"}", "{\"prompt\": 17}"] {
        train(&Place::new(), &[GOOD, GOOD, bad, GOOD]).expect(78, &["rows.jsonl row 3:"]);
    }
}

#[test]
fn text_outside_of_the_alphabet_is_named_by_file_and_number() {
    let bad = r#"{"data_source": "sums", "prompt": "one=", "reward_model": {"ground_truth": "5"}}"#;
    train(&Place::new(), &[GOOD, bad]).expect(78, &["rows.jsonl row 2", "\"o\""]);
}

#[test]
fn a_row_without_the_ground_truth_that_a_reward_needs_is_refused() {
    let bad = r#"{"data_source": "sums", "prompt": "1+2="}"#;
    let place = Place::new();
    let path = place.file("rows.jsonl");
    fs::write(&path, [GOOD, bad].join("\n")).unwrap();
    let rewards = json!({ "functions": [{ "name": "right", "kind": "Exact" }] });
    place
        .train(&tiny_with(json!({ "data": { "task": null, "train": [path] }, "rewards": rewards })))
        .expect(78, &["right"]);
}

#[test]
fn an_empty_prompt_is_named_by_file_and_number() {
    for empty in [r#"{"prompt": ""}"#, r#"{"prompt": []}"#] {
        train(&Place::new(), &[GOOD, empty]).expect(78, &["rows.jsonl row 2"]);
    }
}

/// Runs supervised training on a file of these lines, with a template that renders only the contents of
/// messages.
fn imitate(place: &Place, lines: &[&str]) -> Ended {
    let path = place.file("rows.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    place.train(&tiny_with(json!({
        "model": { "chatTemplate": "{% for message in messages %}{{ message.content }}{% endfor %}" },
        "data": { "task": null, "train": [path] },
        "algorithm": { "kind": "SFT" },
        "rewards": null
    })))
}

#[test]
fn a_conversation_outside_of_the_alphabet_is_named_by_file_and_number() {
    let row = |answer: &str| {
        json!({ "messages": [{ "role": "user", "content": "1+1=" }, { "role": "assistant", "content": answer }] })
            .to_string()
    };
    let place = Place::new();
    imitate(&place, &[&row("2"), &row("2")]).expect(0, &[]);
    assert_eq!(place.steps().len(), 3);
    imitate(&Place::new(), &[&row("2"), &row("two")]).expect(78, &["rows.jsonl row 2", "\"t\""]);
}

#[test]
fn parquet_in_the_columns_of_verl_is_trained_and_evaluated_on() {
    let fixture = rlt_tests::workspace_root().join("trainer/data/tests/fixtures/data/sums.parquet");
    let place = Place::new();
    let manifest = tiny_with(json!({
        "model": { "chatTemplate": "{% for message in messages %}{{ message.content }}{% endfor %}" },
        "data": { "task": null, "train": [fixture], "heldOut": [fixture], "maxHeldOutPrompts": 2 },
        "rewards": { "functions": [{ "name": "right", "kind": "MatchingCharacters" }] },
        "training": { "steps": null, "epochs": 1 }
    }));
    place.train(&manifest).expect(0, &[]);
    assert_eq!(place.steps().len(), 3, "six rows, two a step");
    let last = place.metrics().pop().unwrap();
    assert!(last["val-core/verl/sums/reward/mean@1"].is_number(), "{last}");
    let completions = place.completions();
    assert!(completions.iter().any(|c| c["prompt"] == "1+1=" && c["ground_truth"] == "2"), "{completions:?}");
}

#[test]
fn a_truncated_parquet_file_is_named() {
    let fixture = rlt_tests::workspace_root().join("trainer/data/tests/fixtures/data/sums.parquet");
    let place = Place::new();
    let path = place.file("rows.parquet");
    let whole = fs::read(fixture).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    place
        .train(&tiny_with(json!({ "data": { "task": null, "train": [path] } })))
        .expect(78, &["rows.parquet"]);
}
