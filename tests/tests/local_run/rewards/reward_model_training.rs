//! Reward models from pairs: trained, measured, exported as transformers loads them, and used by the next
//! job. Tests of the trainer compare loss and gradients with TRL's; these are whole runs.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::ranks;
use crate::resume::{assert_same_run, prolonged};

fn reward_model(more: Value) -> Value {
    let mut changes = json!({
        "algorithm": { "kind": "RewardModel", "rewardModel": { "centeringCoefficient": 0.01 } },
        "data": { "task": { "maxOperand": 99 } }, "rewards": null,
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
fn a_resumed_reward_model_is_the_whole_one() {
    for more in [json!({}), json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } })] {
        let (whole, resumed) = prolonged(&reward_model(more));
        assert_same_run(&whole, &resumed);
    }
}

#[test]
fn neither_ranks_nor_micro_batches_nor_places_of_weights_change_a_reward_model() {
    let lora = json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } });
    for more in [json!({}), lora] {
        let changes = reward_model(more);
        let one = ranks::train(1, &changes);
        assert!(one.steps().iter().all(|step| number(step, "actor/grad_norm") > 0.0), "{changes}");
        let with = |more: Value| {
            let mut changes = changes.clone();
            merge(&mut changes, more);
            changes
        };
        // The budget fits one sequence, so chosen and rejected completions are in separate micro-batches.
        let torn = with(json!({ "training": { "maxTokensPerMicroBatch": 12, "maxLogprobTokens": 12 } }));
        let sharded = with(json!({ "workers": { "mesh": { "dpShard": 2 } } }));
        let shared = with(json!({ "workers": { "mesh": { "sp": 2 } } }));
        let offloaded = with(json!({
            "training": {
                "activationCheckpointing": true,
                "offload": { "parameters": true, "optimizer": true, "activations": true }
            }
        }));
        for (count, changes) in [(1, torn), (1, offloaded), (2, changes.clone()), (2, sharded), (2, shared)] {
            let difference = ranks::difference(&one, &ranks::train(count, &changes));
            assert!(difference < ranks::TOLERANCE, "{count} ranks, {changes}: {difference}");
        }
    }
}

#[test]
fn a_sharded_reward_model_in_bf16_is_the_whole_one_in_bf16() {
    let changes = reward_model(json!({ "training": { "precision": "Bf16", "steps": 2 } }));
    let one = ranks::train(1, &changes);
    let mut sharded = changes;
    merge(&mut sharded, json!({ "workers": { "mesh": { "dpShard": 2 } } }));
    let two = ranks::train(2, &sharded);
    for (one, two) in one.steps().iter().zip(two.steps()) {
        let difference = number(one, "reward_model/loss") - number(&two, "reward_model/loss");
        assert!(difference.abs() < 1e-2, "{one} {two}");
    }
}

/// Writes pairs whose chosen completion ends well.
fn pairs(place: &Place, margin: Option<Value>) -> Value {
    let row = |prompt: &str, good: &str, bad: &str| {
        let mut row = json!({ "prompt": prompt, "chosen": good, "rejected": bad });
        row["margin"] = margin.clone().unwrap_or_default();
        format!("{row}\n")
    };
    let train: String = [("1+1=", "7", "0+"), ("2+2=", "77", "0"), ("3+4=", "7", "00")]
        .map(|(prompt, good, bad)| row(prompt, good, bad))
        .concat();
    let [train_path, held_out_path] = ["pairs.jsonl", "held-out.jsonl"].map(|name| place.file(name));
    fs::write(&train_path, train).unwrap();
    fs::write(&held_out_path, row("4+4=", "7", "0")).unwrap();
    json!({ "train": [train_path], "heldOut": [held_out_path] })
}

/// A job on pairs of a file.
fn on_pairs(place: &Place, margin: Option<Value>, more: Value) -> Value {
    let mut changes = reward_model(json!({ "data": { "task": null } }));
    merge(&mut changes["data"], pairs(place, margin));
    merge(&mut changes, more);
    let mut manifest = tiny_with(changes);
    manifest["spec"]["data"].as_object_mut().unwrap().remove("task");
    manifest["spec"].as_object_mut().unwrap().remove("rewards");
    manifest
}

#[test]
fn held_out_pairs_are_ranked_and_the_model_is_exported_as_a_classifier() {
    for (more, has_adapter) in
        [(json!({}), false), (json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } }), true)]
    {
        let place = Place::new();
        let mut more = more;
        merge(
            &mut more,
            json!({ "training": { "steps": 12, "optimizer": { "learningRate": 0.02 }, "evaluateEvery": 12 } }),
        );
        place.train(&on_pairs(&place, None, more)).expect(0, &[]);
        let evaluations = place.metrics();
        let [before, after] = [&evaluations[0], &evaluations[12]];
        assert_eq!(number(after, "val-core/rewards/accuracies"), 1.0, "{after}");
        assert!(number(after, "val-core/rewards/margins") > number(before, "val-core/rewards/margins") + 0.1);
        let margin = number(after, "val-core/rewards/chosen") - number(after, "val-core/rewards/rejected");
        assert!((margin - number(after, "val-core/rewards/margins")).abs() < 1e-9);

        let config: Value =
            serde_json::from_slice(&fs::read(place.run("export/config.json")).unwrap()).unwrap();
        assert_eq!(config["architectures"], json!(["LlamaForSequenceClassification"]));
        assert_eq!((&config["num_labels"], &config["pad_token_id"]), (&json!(1), &json!(0)));
        let weights = place.weights();
        let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
        assert_eq!(weights.tensor("score.weight").unwrap().shape(), [1, 32]);
        assert!(weights.tensor("lm_head.weight").is_err());
        assert!(!place.run("export/generation_config.json").exists());
        assert_eq!(place.run("export/adapter").exists(), has_adapter);
        if has_adapter {
            let adapter = fs::read(place.run("export/adapter/adapter_model.safetensors")).unwrap();
            let adapter = safetensors::SafeTensors::deserialize(&adapter).unwrap();
            let head = adapter.tensor("base_model.model.score.weight").unwrap();
            assert_eq!(head.data(), weights.tensor("score.weight").unwrap().data());
        }
    }
}

#[test]
fn a_margin_is_demanded_of_the_scores_and_must_be_a_number() {
    let first_loss = |margin: Option<Value>| {
        let place = Place::new();
        let more = json!({ "training": { "steps": 1 } });
        place.train(&on_pairs(&place, margin, more)).expect(0, &[]);
        number(&place.steps()[0], "reward_model/loss")
    };
    assert!(first_loss(Some(json!(3))) > first_loss(None) + 2.0);
    let place = Place::new();
    let said = ["row 1", "column \"margin\" is \"much\"", "a number"];
    place.train(&on_pairs(&place, Some(json!("much")), json!({}))).expect(78, &said);
}

#[test]
fn training_continues_from_an_exported_reward_model() {
    let place = Place::new();
    let more = json!({ "training": { "steps": 3, "evaluateEvery": 3 } });
    place.train(&on_pairs(&place, None, more.clone())).expect(0, &[]);
    let after = place.metrics()[3].clone();
    let next = Place::new();
    let mut manifest = on_pairs(&next, None, more);
    manifest["spec"]["model"] = json!({ "path": place.run("export") });
    next.train(&manifest).expect(0, &[]);
    let before = &next.metrics()[0];
    for name in ["val-core/rewards/chosen", "val-core/rewards/rejected"] {
        assert!((number(before, name) - number(&after, name)).abs() < 1e-6, "{before} {after}");
    }
}

#[test]
fn a_trained_reward_model_judges_the_next_job() {
    let place = Place::new();
    place.train(&on_pairs(&place, None, json!({ "training": { "steps": 2 } }))).expect(0, &[]);
    let judge = json!({ "name": "taste", "kind": "Model", "model": { "path": place.run("export") } });
    let judged = Place::new();
    let changes = json!({ "rewards": { "functions": [judge] }, "training": { "steps": 1 } });
    judged.train(&tiny_with(changes)).expect(0, &[]);
    let step = &judged.steps()[0];
    assert!(number(step, "reward/taste/mean") != 0.0, "{step}");
}
