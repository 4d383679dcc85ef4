//! The examples that are written for GPUs, models and data sets of the hub: each runs here for two steps, on
//! a small new model and rows with the columns of its data sets. The test replaces the model, the rows,
//! lengths, batches and the number of ranks; algorithm, rewards, mesh and checkpoints are the example's.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Place, merge};

/// Characters of the rows, which are the alphabet of the model.
const ALPHABET: &str = "0123456789+=# abc\n\\{}oxed";

/// Twelve rows, each by its number.
fn rows(row: fn(usize) -> Value) -> String {
    (0..12).map(|number| format!("{}\n", row(number))).collect()
}

/// A row in the format of `openai/gsm8k`.
fn word_problem(number: usize) -> Value {
    json!({ "question": format!("{number}+2="), "answer": format!("a\n#### {}", number + 2) })
}

/// A row in the format of `BytedTsinghua-SIA/DAPO-Math-17k`.
fn math_problem(number: usize) -> Value {
    let prompt = json!([{ "role": "user", "content": format!("{number}+2=") }]);
    json!({ "data_source": "math_dapo", "prompt": prompt, "reward_model": { "ground_truth": (number + 2).to_string() } })
}

fn conversation(number: usize, answer: &str) -> Value {
    json!([
        { "role": "user", "content": format!("{number} ") },
        { "role": "assistant", "content": answer },
    ])
}

/// A row in the format of `HuggingFaceH4/ultrachat_200k`.
fn chat(number: usize) -> Value {
    json!({ "messages": conversation(number, "abc") })
}

/// A row in the format of `trl-lib/ultrafeedback_binarized`.
fn pair(number: usize) -> Value {
    json!({ "chosen": conversation(number, "abc"), "rejected": conversation(number, "bb") })
}

/// The row of a data set of the hub.
fn row_of(repo: &str) -> fn(usize) -> Value {
    match repo {
        "openai/gsm8k" => word_problem,
        "HuggingFaceH4/ultrachat_200k" => chat,
        "trl-lib/ultrafeedback_binarized" => pair,
        "BytedTsinghua-SIA/DAPO-Math-17k" | "BytedTsinghua-SIA/AIME-2024" => math_problem,
        other => unreachable!("no rows stand in for {other}"),
    }
}

/// Returns a small version of the example `name`, with its rows in files of `place`.
fn in_small(place: &Place, name: &str) -> Value {
    let path = rlt_tests::workspace_root().join("examples").join(name).join("job.yaml");
    let job = rlt_api::validate(&fs::read_to_string(path).unwrap()).unwrap();
    let spec = job.spec();
    assert!(spec.workers.storage.is_some(), "{name}: its result would be lost");
    let token = spec.workers.env.iter().find(|one| one.name == "HF_TOKEN");
    assert!(token.is_some_and(|one| one.secret.is_some()), "{name}: the token is no secret");
    let mut manifest = json!({
        "apiVersion": "rltraining.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": { "name": name }, "spec": spec
    });
    let spec = &mut manifest["spec"];
    for set in spec["data"]["datasets"].as_array_mut().unwrap() {
        let repo = set["hub"]["repo"].as_str().unwrap().to_owned();
        let file = place.file(&format!("{}.jsonl", repo.replace('/', "-")));
        fs::write(&file, rows(row_of(&repo))).unwrap();
        merge(set, json!({ "hub": null, "files": [file] }));
    }
    if spec["model"].get("hub").is_some() {
        let architecture = json!({
            "family": "Llama", "hiddenSize": 32, "intermediateSize": 64, "numLayers": 2, "numHeads": 2,
            "maxPositionEmbeddings": 64
        });
        merge(
            &mut spec["model"],
            json!({
                "hub": null, "architecture": architecture, "tokenizer": { "characters": ALPHABET },
                "chatTemplate": "{% for m in messages %}{{ m.content }}{% endfor %}"
            }),
        );
    }
    scale_down(spec);
    manifest
}

/// Reduces a job to two ranks if it has several, and to two steps of a few short prompts.
fn scale_down(spec: &mut Value) {
    let num_ranks = if spec["workers"]["ranksPerWorker"] == 8 { 2 } else { 1 };
    let mesh = &spec["workers"]["mesh"];
    let degree = |name: &str| json!(mesh[name].as_u64().unwrap_or(1).min(num_ranks));
    let mesh = json!({ "dpShard": degree("dpShard"), "rolloutTp": degree("rolloutTp") });
    let samples = spec["rollout"]["samplesPerPrompt"].as_u64().unwrap_or(1).min(4);
    let is_streamed = spec["data"].get("streaming").is_some();
    merge(
        spec,
        json!({
            "workers": { "device": "Cpu", "threads": 1, "count": 1, "ranksPerWorker": num_ranks, "mesh": mesh },
            "data": { "maxPromptTokens": 24, "systemPrompt": null },
            "rollout": { "samplesPerPrompt": samples, "maxCompletionTokens": 8, "maxModelTokens": null },
            "training": {
                "steps": 2, "epochs": null, "promptsPerStep": 4, "promptsPerUpdate": 2, "evaluateEvery": 1,
                "maxTokensPerMicroBatch": null, "maxLogprobTokens": null, "schedule": { "warmupSteps": 0 }
            },
            "checkpoint": { "everySteps": 1, "uri": null },
        }),
    );
    if spec["algorithm"]["kind"] == "DAPO" {
        merge(
            spec,
            json!({ "algorithm": { "dynamicSampling": { "maxBatches": 2 } }, "rewards": { "overlong": null } }),
        );
    }
    if spec["algorithm"]["kind"] == "SFT" || spec["algorithm"].get("preference").is_some() {
        merge(spec, json!({ "training": { "promptsPerUpdate": 4 } }));
    }
    if spec["algorithm"].get("rewardModel").is_some() {
        merge(spec, json!({ "training": { "promptsPerUpdate": 4 } }));
    }
    if is_streamed {
        merge(spec, json!({ "data": { "streaming": { "blockRows": 12 } } }));
    }
}

/// Trains a small version of the example `name`, and returns where the run is.
fn train(name: &str, changes: Value) -> Place {
    let place = Place::new();
    let mut manifest = in_small(&place, name);
    merge(&mut manifest["spec"], changes);
    place.train(&manifest).expect(0, &[]);
    assert_eq!(place.steps().len(), 2, "{name}");
    place
}

#[test]
fn the_examples_of_mathematics_train() {
    for name in ["gsm8k", "lora-7b", "lora-72b", "full-32b"] {
        let place = train(name, json!({}));
        assert!(place.steps().iter().all(|line| line.get("reward/right/mean").is_some()), "{name}");
        assert_eq!(place.run("export/adapter").exists(), name.starts_with("lora"), "{name}");
    }
}

#[test]
fn the_examples_of_chat_go_on_from_each_other() {
    let taught = train("chat-sft", json!({}));
    let model = json!({ "model": { "path": taught.run("export") } });
    train("chat-dpo", model.clone());
    let judge = train("chat-reward-model", model.clone());
    let function =
        json!([{ "name": "preferred", "kind": "Model", "model": { "path": judge.run("export") } }]);
    let mut changes = model;
    merge(&mut changes, json!({ "rewards": { "functions": function } }));
    let place = train("chat-ppo", changes);
    let critic_learns = place.steps().iter().all(|line| line.get("critic/vf_loss").is_some());
    assert!(critic_learns, "no critic in {:?}", place.steps());
}
