//! A run continues with other token budgets only if it trains the same demonstrations.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Ended, Place, merge, tiny_with};

/// A row of 7 tokens: one before the text, one after it.
const SHORT: &str = r#"{"prompt": "1+1=", "response": "2", "reward_model": {"ground_truth": "2"}}"#;
/// A row of 24 tokens.
const LONG: &str =
    r#"{"prompt": "1+1=", "response": "222222222222222222", "reward_model": {"ground_truth": "2"}}"#;

/// Name of the field in errors.
const BUDGET: &str = "spec.training.maxTokensPerMicroBatch";

/// Supervised training on these rows for `steps` steps, with micro-batches of `max_tokens`.
fn supervised(place: &Place, rows: &[&str], max_tokens: u32, steps: u32) -> Value {
    let path = place.file("rows.jsonl");
    fs::write(&path, rows.join("\n")).unwrap();
    tiny_with(json!({
        "data": { "task": null, "train": [path] },
        "algorithm": { "kind": "SFT" },
        "rewards": null,
        "training": { "steps": steps, "maxTokensPerMicroBatch": max_tokens }
    }))
}

/// Trains two steps on `rows` with one budget, and two more with another. `changes` apply to both manifests.
fn continued(place: &Place, rows: &[&str], budgets: [u32; 2], changes: &Value) -> Ended {
    let [mut first, mut second] =
        [(budgets[0], 2), (budgets[1], 4)].map(|(budget, steps)| supervised(place, rows, budget, steps));
    for manifest in [&mut first, &mut second] {
        merge(&mut manifest["spec"], changes.clone());
    }
    place.train(&first).expect(0, &[]);
    let ended = place.train(&second);
    if ended.code == Some(78) {
        // The run folder now has the manifest of the refused attempt.
        let again = place.train(&second);
        assert_eq!(again.code, Some(78), "{}{}", again.stdout, again.stderr);
        place.train(&supervised_again(first)).expect(0, &["resuming after step 2"]);
    }
    ended
}

/// Returns the first manifest with one more step, which continues although another manifest was refused.
fn supervised_again(mut manifest: Value) -> Value {
    merge(&mut manifest["spec"], json!({ "training": { "steps": 3 } }));
    manifest
}

#[test]
fn another_budget_is_refused_if_it_leaves_out_or_cuts_other_rows() {
    let rows = [SHORT, LONG, SHORT, SHORT];
    for (rule, budgets) in
        [("Filter", [32, 16]), ("Filter", [16, 24]), ("TruncateRight", [24, 16]), ("TruncateRight", [16, 20])]
    {
        let place = Place::new();
        let changes = json!({ "data": { "overlongPrompts": rule } });
        let [there, here] = budgets;
        continued(&place, &rows, budgets, &changes).expect(
            78,
            &[
                &format!("{BUDGET} was {there} and is {here}"),
                &format!("{here} tokens, not {there}"),
                "1 row(s)",
                &format!("spec.workers.mesh.sp at {there}"),
                "--overwrite",
            ],
        );
        assert_eq!(place.steps().len(), 3, "{rule}");
    }
}

#[test]
fn another_budget_is_taken_if_no_row_changes() {
    for (rows, budgets) in [
        (&[SHORT, SHORT, SHORT][..], [32, 16]),
        // No row is longer than either budget.
        (&[SHORT, LONG, SHORT], [24, 32]),
        // Both budgets leave out the long row.
        (&[SHORT, LONG, SHORT], [16, 20]),
        // The model's context of 32 tokens limits both.
        (&[SHORT, LONG, SHORT], [64, 32]),
    ] {
        let place = Place::new();
        continued(&place, rows, budgets, &json!({})).expect(0, &["resuming after step 2"]);
        assert_eq!(place.steps().len(), 4);
    }
}

#[test]
fn a_stream_keeps_its_limit_because_later_rows_are_not_known() {
    let place = Place::new();
    let changes = json!({ "data": { "streaming": { "blockRows": 2 } } });
    continued(&place, &[SHORT, SHORT], [32, 16], &changes)
        .expect(78, &[&format!("{BUDGET} was 32 and is 16"), "rows are streamed"]);
}

#[test]
fn ranks_that_share_sequences_count_into_the_limit() {
    let rows = [SHORT, LONG, SHORT, SHORT];
    let shared = json!({ "workers": { "ranksPerWorker": 2, "mesh": { "sp": 2 } } });
    let place = Place::new();
    place.train(&supervised(&place, &rows, 32, 2)).expect(0, &[]);
    let mut more = supervised(&place, &rows, 16, 3);
    merge(&mut more["spec"], shared.clone());
    place.train(&more).expect(0, &["resuming after step 2"]);

    let place = Place::new();
    let data = json!({ "data": { "overlongPrompts": "TruncateRight" } });
    let [mut less, mut more] = [2, 3].map(|steps| supervised(&place, &rows, 16, steps));
    merge(&mut less["spec"], data.clone());
    merge(&mut more["spec"], data);
    merge(&mut more["spec"], shared);
    place.train(&less).expect(0, &[]);
    let ended = place.train(&more).expect(
        78,
        &[
            "spec.workers.mesh.sp was 1 and is 2",
            "32 tokens, not 16",
            "1 row(s)",
            "spec.workers.mesh.sp at 16",
        ],
    );
    assert!(!ended.stderr.contains(&format!("{BUDGET} was")), "{}", ended.stderr);
}

#[test]
fn the_limit_of_a_cold_start_is_free_after_its_last_step() {
    let place = Place::new();
    let path = place.file("rows.jsonl");
    fs::write(&path, [SHORT, LONG, SHORT, SHORT].join("\n")).unwrap();
    let job = |max_tokens: u32, steps: u32| {
        tiny_with(json!({
            "data": { "task": null, "train": [path] },
            "algorithm": { "coldStart": { "steps": 2, "batchSize": 2 } },
            "training": { "steps": steps, "maxTokensPerMicroBatch": max_tokens }
        }))
    };
    place.train(&job(32, 1)).expect(0, &[]);
    place.train(&job(16, 2)).expect(0, &["resuming after step 1"]);
    assert_eq!(place.steps().len(), 2);
}
