//! Process reward models: trained on steps that are right or wrong, exported as transformers loads them, and
//! used by the next job. Tests of the trainer compare loss and gradients with transformers'.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::ranks;
use crate::resume::{assert_same_run, prolonged};

/// Changes for a job on completions of two steps, where steps with a 7 are right. Its files are in `place`.
fn on_steps(place: &Place, more: Value) -> Value {
    let row = |prompt: &str, steps: &[&str]| {
        let labels: Vec<bool> = steps.iter().map(|step| step.contains('7')).collect();
        json!({ "prompt": prompt, "completions": steps, "labels": labels }).to_string() + "\n"
    };
    let train = [
        row("1+1=", &["7", "0"]),
        row("2+2=", &["0", "7"]),
        row("3+4=", &["7"]),
        row("5+4=", &["0"]),
        row("6+1=", &["7", "7"]),
    ];
    let paths = ["steps.jsonl", "held-out.jsonl"].map(|name| place.file(name));
    fs::write(&paths[0], train.concat()).unwrap();
    fs::write(&paths[1], row("4+4=", &["7", "0"])).unwrap();
    let mut changes = json!({
        "algorithm": { "kind": "ProcessReward", "processReward": { "stepSeparator": "=" } },
        "data": { "task": null, "train": [paths[0]], "heldOut": [paths[1]] }, "rewards": null,
        "training": { "promptsPerStep": 3, "evaluateBefore": true, "evaluateEvery": 3 }
    });
    merge(&mut changes, more);
    changes
}

fn number(line: &Value, name: &str) -> f64 {
    let number = line[name].as_f64();
    assert!(number.is_some(), "{name} of {line}");
    number.unwrap()
}

#[test]
fn a_resumed_process_reward_model_is_the_whole_one_however_it_is_split() {
    let files = Place::new();
    for more in [json!({}), json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } })] {
        let changes = on_steps(&files, more);
        let (whole, resumed) = prolonged(&changes);
        assert_same_run(&whole, &resumed);
        let one = ranks::train(1, &changes);
        let with = |more: Value| {
            let mut changes = changes.clone();
            merge(&mut changes, more);
            changes
        };
        let torn = with(json!({ "training": { "maxTokensPerMicroBatch": 12, "maxLogprobTokens": 12 } }));
        let sharded = with(json!({ "workers": { "mesh": { "dpShard": 2 } } }));
        for (count, changes) in [(1, torn), (2, sharded)] {
            let difference = ranks::difference(&one, &ranks::train(count, &changes));
            assert!(difference < ranks::TOLERANCE, "{count} ranks, {changes}: {difference}");
        }
    }
}

#[test]
fn a_process_reward_model_is_exported_and_judges_steps_in_the_next_job() {
    let place = Place::new();
    let training = json!({ "steps": 40, "optimizer": { "learningRate": 0.005 }, "evaluateEvery": 40 });
    place.train(&tiny_with(on_steps(&place, json!({ "training": training })))).expect(0, &[]);
    let last = place.metrics()[40].clone();
    for name in ["accuracy", "accuracy_of_right", "accuracy_of_wrong"] {
        assert_eq!(number(&last, &format!("val-core/steps/{name}")), 1.0, "{last}");
    }
    let config: Value = serde_json::from_slice(&fs::read(place.run("export/config.json")).unwrap()).unwrap();
    // transformers read the fixture with this configuration for `exported_process.json` of the trainer's
    // tests.
    let fixture = "trainer/tests/fixtures/models/exported-process/config.json";
    let fixture = fs::read_to_string(rlt_tests::workspace_root().join(fixture)).unwrap();
    assert_eq!(config, serde_json::from_str::<Value>(&fixture).unwrap());
    let weights = place.weights();
    let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert_eq!(weights.tensor("score.weight").unwrap().shape(), [2, 32]);
    assert_eq!(weights.tensor("score.bias").unwrap().shape(), [2]);

    let judge = |name: &str, aggregation: &str| {
        let steps = json!({ "separator": "=", "aggregation": aggregation });
        json!({ "name": name, "kind": "Model", "model": { "path": place.run("export"), "steps": steps } })
    };
    let all = [("min", "Min"), ("last", "Last"), ("mean", "Mean"), ("product", "Product")];
    let functions: Vec<Value> = all.iter().map(|(name, aggregation)| judge(name, aggregation)).collect();
    let rewards = |count: u32, dp_shard: u32| -> Vec<Vec<f64>> {
        let judged = Place::new();
        let changes = json!({
            "rewards": { "functions": functions }, "training": { "steps": 1 },
            "tracking": { "completionsPerStep": 8 },
            "workers": { "count": count, "mesh": { "dpShard": dp_shard } }
        });
        judged.train(&tiny_with(changes)).expect(0, &[]);
        let part = |line: &Value, name: &str| line["reward_parts"][name].as_f64().unwrap();
        let lines = judged.completions().into_iter().filter(|line| line["held_out"] == false);
        lines.map(|line| all.iter().map(|(name, _)| part(&line, name)).collect()).collect()
    };
    let alone = rewards(1, 1);
    assert!(!alone.is_empty());
    for parts in &alone {
        let [min, last, mean, product] = parts[..] else { panic!("{parts:?}") };
        assert!(0.0 < product && product <= min && min <= mean && mean < 1.0, "{parts:?}");
        assert!(min <= last, "{parts:?}");
    }
    for (alone, shared) in alone.iter().flatten().zip(rewards(2, 2).iter().flatten()) {
        assert!((alone - shared).abs() < 1e-5, "{alone} {shared}");
    }
}

#[test]
fn the_last_step_alone_is_learned_where_the_manifest_says_so() {
    let place = Place::new();
    let last_only = json!({
        "algorithm": { "processReward": { "lastStepOnly": true } }, "training": { "steps": 1, "promptsPerStep": 5 }
    });
    place.train(&tiny_with(on_steps(&place, last_only))).expect(0, &[]);
    // Three of five last steps are right. For the held-out row, both steps are evaluated.
    let step = &place.steps()[0];
    let right = number(step, "steps/accuracy_of_right");
    assert!([0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0].iter().any(|share| (share - right).abs() < 1e-9), "{step}");
    assert!(place.metrics()[0]["val-core/steps/accuracy_of_wrong"].is_number());
}

#[test]
fn a_bad_row_of_steps_ends_the_job_with_its_column() {
    let place = Place::new();
    let manifest = tiny_with(on_steps(&place, json!({})));
    let good = json!({ "prompt": "1+1=", "completions": ["7"], "labels": [1] });
    for (column, value, said) in [
        ("completions", json!([]), "at least one text"),
        ("completions", json!(["7", 3]), "at least one text"),
        ("labels", json!([true, false]), "one of true and false"),
        ("labels", json!(["yes"]), "one of true and false"),
    ] {
        let mut bad = good.clone();
        bad[column] = value;
        fs::write(place.file("steps.jsonl"), format!("{good}\n{bad}\n")).unwrap();
        let named = format!("column {column:?}");
        Place::new().train(&manifest).expect(78, &["steps.jsonl row 2", &named, said]);
    }
}
