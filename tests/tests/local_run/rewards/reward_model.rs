//! Runs with a trained reward model.

use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

use crate::bad_model::edit_config;
use crate::job::{Place, copy_of_small_model, tiny_with};

const HEAD: &str = "score.weight";

/// Makes a copy of the small model that has a head of one label instead of its own, as transformers saves
/// one.
pub(crate) fn make_reward_model(folder: &Path) {
    copy_of_small_model(folder);
    edit_config(folder, |config| config["architectures"] = json!(["LlamaForSequenceClassification"]));
    let head: Vec<u8> = (0..32u8).flat_map(|idx| (f32::from(idx % 5) - 2.0).to_le_bytes()).collect();
    replace_heads(folder, &[1, 32], &head);
}

/// Replaces all heads by one with these `values`.
fn replace_heads(folder: &Path, shape: &[usize], values: &[u8]) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let kept = tensors.into_iter().filter(|(name, _)| name != "lm_head.weight" && name != HEAD);
    let head = (HEAD.to_owned(), TensorView::new(Dtype::F32, shape.to_vec(), values).unwrap());
    let all: Vec<_> = kept.chain([head]).collect();
    fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
}

/// Swaps the ids of two tokens in the tokenizer of `folder`, and returns the ids.
fn swap_tokens(folder: &Path) -> [usize; 2] {
    let path = folder.join("tokenizer.json");
    let mut definition: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let vocabulary = &mut definition["model"]["vocab"];
    let ids = ["3", "4"].map(|token| vocabulary[token].clone());
    (vocabulary["3"], vocabulary["4"]) = (ids[1].clone(), ids[0].clone());
    fs::write(&path, definition.to_string()).unwrap();
    ids.map(|id| id.as_u64().unwrap() as usize)
}

/// Swaps two rows of the embedding of `folder`.
fn swap_embeddings(folder: &Path, [one, other]: [usize; 2]) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let embedding = tensors.tensor("model.embed_tokens.weight").unwrap();
    let mut values = embedding.data().to_vec();
    let row = 4 * embedding.shape()[1];
    for at in 0..row {
        values.swap(one * row + at, other * row + at);
    }
    let swapped = TensorView::new(Dtype::F32, embedding.shape().to_vec(), &values).unwrap();
    let tensors = tensors.tensors().into_iter();
    let all: Vec<_> = tensors
        .map(|(name, tensor)| match name.as_str() {
            "model.embed_tokens.weight" => (name, swapped.clone()),
            _ => (name, tensor),
        })
        .collect();
    fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
}

/// Changes for a job whose reward is that of `model`, with a weight of 2.
fn judged_by(model: &Path, changes: Value) -> Value {
    let taste = json!({ "name": "taste", "kind": "Model", "weight": 2.0, "model": { "path": model } });
    let mut all = json!({ "rewards": { "functions": [taste] } });
    crate::job::merge(&mut all, changes);
    tiny_with(all)
}

#[test]
fn the_reward_is_the_models_score_for_any_number_of_workers_sharded_or_offloaded() {
    let place = Place::new();
    let model = place.file("reward-model");
    make_reward_model(&model);
    let rewards = |workers: u32, mesh: Value, offloaded: bool| {
        let tracking = json!({ "completionsPerStep": 8 });
        let workers = json!({ "count": workers, "mesh": mesh });
        let training = json!({ "steps": 1, "offload": { "parameters": offloaded } });
        let changes = json!({ "workers": workers, "tracking": tracking, "training": training });
        let place = Place::new();
        place.train(&judged_by(&model, changes)).expect(0, &[]);
        let step = place.steps().remove(0);
        let mean = step["reward/taste/mean"].as_f64().unwrap();
        assert!((step["critic/rewards/mean"].as_f64().unwrap() - 2.0 * mean).abs() < 1e-9, "{step}");
        let lines = place.completions().into_iter().filter(|line| line["held_out"] == false);
        lines
            .map(|line| (line["completion"].clone(), line["reward_parts"]["taste"].as_f64().unwrap()))
            .collect()
    };
    let alone: Vec<(Value, f64)> = rewards(1, json!({}), false);
    assert!(alone.iter().any(|(_, reward)| (reward - alone[0].1).abs() > 1e-3), "scores differ: {alone:?}");
    // Three workers share two prompts, so one of them takes part in passes without samples.
    for many in [
        rewards(2, json!({}), false),
        rewards(2, json!({}), true),
        rewards(3, json!({ "dpShard": 3 }), false),
        rewards(3, json!({ "rewardModelDpShard": 3 }), false),
    ] {
        assert_eq!(alone.len(), many.len());
        for (ours, theirs) in alone.iter().zip(&many) {
            assert_eq!(ours.0, theirs.0);
            assert!((ours.1 - theirs.1).abs() < 1e-5, "{ours:?} {theirs:?}");
        }
    }
}

#[test]
fn a_reward_model_that_does_not_fit_is_refused_by_name() {
    type Damage = fn(&Path);
    let damages: [(Damage, &[&str]); 6] = [
        (|model| fs::remove_dir_all(model).unwrap(), &["config.json"]),
        (
            |model| edit_config(model, |config| config["architectures"] = json!(["LlamaForCausalLM"])),
            &["LlamaForCausalLM", "LlamaForSequenceClassification"],
        ),
        (|model| replace_heads(model, &[2, 32], &[0; 256]), &[HEAD, "[1, 32]", "[2, 32]"]),
        (
            |model| edit_config(model, |config| config["max_position_embeddings"] = json!(9)),
            &["reads at most 9 tokens", "12"],
        ),
        (
            |model| {
                swap_tokens(model);
            },
            &["another vocabulary", "\"3\""],
        ),
        (|model| fs::write(model.join("model.safetensors"), [0; 5]).unwrap(), &["model.safetensors"]),
    ];
    for (damage, words) in damages {
        let place = Place::new();
        let model = place.file("reward-model");
        make_reward_model(&model);
        damage(&model);
        let ended = place.train(&judged_by(&model, json!({}))).expect(78, &["taste"]);
        ended.expect(78, words);
    }
}

#[test]
fn a_reward_model_of_another_vocabulary_reads_text_and_scores_equally() {
    let place = Place::new();
    let (own, other) = (place.file("own"), place.file("other"));
    for model in [&own, &other] {
        make_reward_model(model);
    }
    let ids = swap_tokens(&other);
    swap_embeddings(&other, ids);
    let rewards = |model: &Path, input: &str| -> Vec<f64> {
        let place = Place::new();
        let mut manifest =
            judged_by(model, json!({ "tracking": { "completionsPerStep": 8 }, "training": { "steps": 1 } }));
        manifest["spec"]["rewards"]["functions"][0]["model"]["input"] = input.into();
        place.train(&manifest).expect(0, &[]);
        let lines = place.completions().into_iter().filter(|line| line["held_out"] == false);
        lines.map(|line| line["reward_parts"]["taste"].as_f64().unwrap()).collect()
    };
    // The input is text and not tokens, because an untrained policy also samples special tokens, which have
    // no text.
    let (expected, got) = (rewards(&own, "Text"), rewards(&other, "Text"));
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-5, "{got} {expected}");
    }
    fs::remove_file(other.join("tokenizer.json")).unwrap();
    let mut manifest = judged_by(&other, json!({}));
    manifest["spec"]["rewards"]["functions"][0]["model"]["input"] = "Text".into();
    Place::new().train(&manifest).expect(78, &["taste", "tokenizer.json"]);
    let mut manifest = judged_by(&own, json!({}));
    manifest["spec"]["rewards"]["functions"][0]["model"]["steps"] = json!({ "separator": "=" });
    Place::new().train(&manifest).expect(78, &["taste", "one label"]);
}
