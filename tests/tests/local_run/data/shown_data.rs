//! `rlctl data`: rows as the training will see them.

use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place, tiny_with};

/// The output of `rlctl data` for the first rows of `manifest`.
fn shown(place: &Place, manifest: &Value, arguments: &[&str]) -> Ended {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    command.args(["data", "-f"]).arg(place.write(manifest)).args(arguments);
    Ended::of(command.output().unwrap())
}

#[test]
fn rows_are_shown_as_the_training_will_see_them_and_what_is_wrong_by_its_reason() {
    let place = Place::new();
    let ended = shown(&place, &tiny_with(json!({})), &["--rows", "3"]);
    let ended =
        ended.expect(0, &["generated problem 1: kept; ", "3 rows: 3 kept, 0 cut, 0 left out, 0 wrong"]);
    assert_eq!(ended.stdout.matches("  | ").count(), 3, "{}", ended.stdout);
    shown(&place, &tiny_with(json!({})), &["--rows", "1", "--held-out"]).expect(0, &["1 rows: 1 kept"]);

    let rows = [
        json!({"question": "1+1=", "answer": "2"}),
        json!({"question": "1+1+1+1+1+1=", "answer": "6"}),
        json!({"question": "2+2="}),
        json!({"question": "x+1=", "answer": "2"}),
    ];
    let path = place.file("rows.jsonl");
    std::fs::write(&path, rows.map(|row| format!("{row}\n")).concat()).unwrap();
    let data = json!({ "task": null, "train": [path], "promptKey": "question", "maxPromptTokens": 6 });
    let rewards = json!({ "functions": [{ "name": "right", "kind": "Exact" }] });
    let manifest = tiny_with(json!({ "data": data, "rewards": rewards }));
    let ended = shown(&place, &manifest, &[]);
    ended.expect(
        78,
        &[
            "rows.jsonl row 1: kept; ",
            "ground truth \"2\"\n  | 1+1=\n",
            "row 2: left out: ",
            "tokens, at most 6",
            "row 3: wrong: failed to judge ",
            "rows.jsonl row 3 with reward function \"right\"",
            "row 4: wrong: tokenize",
            "4 rows: 1 kept, 0 cut, 1 left out, 2 wrong",
        ],
    );
}

#[test]
fn control_characters_of_files_and_rows_are_shown_as_escapes() {
    let place = Place::new();
    let rows = [
        json!({"question": "1+1=", "answer": "2\u{1b}[2J", "data_source": "a\u{9b}2J"}),
        json!({"question": "1+\u{1b}[2J=", "answer": "2", "data_source": "\u{202e}"}),
    ];
    let path = place.file("rows\u{1b}]0;title\u{7}.jsonl");
    std::fs::write(&path, rows.map(|row| format!("{row}\n")).concat()).unwrap();
    let data = json!({ "task": null, "train": [path], "promptKey": "question" });
    let rewards = json!({ "functions": [{ "name": "right", "kind": "Exact" }] });
    let ended = shown(&place, &tiny_with(json!({ "data": data, "rewards": rewards })), &[]);
    let text = format!("{}{}", ended.stdout, ended.stderr);
    assert!(text.contains("rows\\u{1b}]0;title\\u{7}.jsonl row 1"), "{text:?}");
    let is_shown = |each: char| "\n\t".contains(each) || !(each.is_control() || each == '\u{202e}');
    assert!(text.chars().all(is_shown), "{text:?}");
}
