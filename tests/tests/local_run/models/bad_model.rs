//! Model folders that are damaged or do not fit: refused before the first step, the file and tensor named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place, copy_of_small_model, on_files, small_model, tiny_with};

const EMBEDDING: &str = "model.embed_tokens.weight";

/// Trains on a copy of the small model, damaged by `damage`.
fn train_damaged(changes: Value, damage: impl FnOnce(&Path)) -> Ended {
    let place = Place::new();
    let model = place.file("model");
    copy_of_small_model(&model);
    damage(&model);
    place.train(&on_files(&model, changes))
}

pub(crate) fn edit_config(model: &Path, edit: impl FnOnce(&mut Value)) {
    let path = model.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

fn weights(model: &Path) -> PathBuf {
    model.join("model.safetensors")
}

/// Changes header and data of the weights, whose layout is: length of the header, header as JSON, data.
fn edit_weights(model: &Path, edit: impl FnOnce(&mut Value, &mut Vec<u8>)) {
    let bytes = fs::read(weights(model)).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let mut data = bytes[8 + header_len..].to_vec();
    edit(&mut header, &mut data);
    let header = header.to_string();
    let len = (header.len() as u64).to_le_bytes();
    fs::write(weights(model), [&len, header.as_bytes(), &data].concat()).unwrap();
}

/// Sets those values of a tensor whose index is `picked`.
fn set(header: &Value, data: &mut [u8], tensor: &str, picked: impl Fn(usize) -> bool, value: f32) {
    let offsets = &header[tensor]["data_offsets"];
    let (begin, end) = (offsets[0].as_u64().unwrap() as usize, offsets[1].as_u64().unwrap() as usize);
    for (idx, number) in data[begin..end].chunks_exact_mut(4).enumerate() {
        if picked(idx) {
            number.copy_from_slice(&value.to_le_bytes());
        }
    }
}

#[test]
fn a_missing_model_is_named() {
    let place = Place::new();
    let missing = place.file("nowhere");
    place.train(&on_files(&missing, json!({}))).expect(78, &[missing.to_str().unwrap()]);
}

/// Opening the pipe to read it would block until a writer opens it.
#[test]
fn a_file_of_a_model_that_is_a_pipe_ends_the_run_at_once() {
    let files = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ];
    for name in files {
        let damage = |model: &Path| {
            let _ = fs::remove_file(model.join(name));
            assert!(Command::new("mkfifo").arg(model.join(name)).status().unwrap().success());
        };
        train_damaged(json!({}), damage).expect(78, &[name, "expected a regular file, found a pipe"]);
    }
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_are_known() {
    let damage = |model: &Path| {
        edit_config(model, |config| {
            config["architectures"] = json!(["MambaForCausalLM"]);
            config["model_type"] = json!("mamba");
        });
    };
    let ended = train_damaged(json!({}), damage).expect(78, &["config.json"]);
    assert!(ended.stderr.to_lowercase().contains("mamba"), "{}", ended.stderr);
    assert!(ended.stderr.contains("Qwen3") || ended.stderr.contains("qwen3"), "{}", ended.stderr);
}

#[test]
fn a_configuration_that_is_no_json_is_named() {
    train_damaged(json!({}), |model| fs::write(model.join("config.json"), "{\"model_type\": ").unwrap())
        .expect(78, &["config.json"]);
}

#[test]
fn missing_weights_are_named() {
    train_damaged(json!({}), |model| fs::remove_file(weights(model)).unwrap())
        .expect(78, &["model.safetensors"]);
}

#[test]
fn truncated_weights_are_named() {
    let truncate = |len: fn(u64) -> u64| {
        move |model: &Path| {
            let file = fs::OpenOptions::new().write(true).open(weights(model)).unwrap();
            file.set_len(len(file.metadata().unwrap().len())).unwrap();
        }
    };
    let lens: [fn(u64) -> u64; 4] = [|_| 0, |_| 5, |_| 100, |len| len - 1];
    for len in lens {
        train_damaged(json!({}), truncate(len)).expect(78, &["model.safetensors"]);
    }
}

#[test]
fn weights_that_are_not_a_number_are_named() {
    let damage = |model: &Path| {
        edit_weights(model, |header, data| set(header, data, EMBEDDING, |idx| idx == 7, f32::NAN));
    };
    train_damaged(json!({}), damage).expect(78, &["model.safetensors", EMBEDDING, "NaN"]);
}

#[test]
fn a_wrong_shape_is_named_with_the_right_one() {
    train_damaged(json!({}), |model| edit_config(model, |config| config["intermediate_size"] = json!(128)))
        .expect(78, &["model.safetensors", "gate_proj", "[128, 32]", "[64, 32]"]);
}

#[test]
fn a_tensor_too_few_is_named() {
    let damage = |model: &Path| edit_config(model, |config| config["num_hidden_layers"] = json!(2));
    train_damaged(json!({}), damage).expect(78, &["model.layers.1."]);
}

#[test]
fn a_tensor_too_many_is_named() {
    let damage = |model: &Path| {
        edit_weights(model, |header, data| {
            let begin = data.len();
            data.extend_from_slice(&1f32.to_le_bytes());
            header["model.extra.weight"] =
                json!({ "dtype": "F32", "shape": [1], "data_offsets": [begin, begin + 4] });
        });
    };
    train_damaged(json!({}), damage).expect(78, &["model.extra.weight"]);
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_is_refused() {
    let other = Place::new();
    let alphabet = json!({ "model": { "tokenizer": { "characters": "0123456789+=abcdefghijklmnop" } },
        "training": { "steps": 1 } });
    other.train(&tiny_with(alphabet)).expect(0, &[]);
    let changes = json!({ "model": { "tokenizer": { "path": other.run("export") } } });
    train_damaged(changes, |_| ()).expect(78, &["token ids", "vocab_size"]);
}

#[test]
fn a_folder_without_a_tokenizer_is_refused() {
    train_damaged(json!({}), |model| fs::remove_file(model.join("tokenizer.json")).unwrap())
        .expect(78, &["tokenizer"]);
}

/// Runs `command`, `score` or `generate`, on the model in `folder`.
fn use_model(command: &str, folder: &Path, lines: &str) -> Ended {
    let place = Place::new();
    fs::write(place.file("in.jsonl"), lines).unwrap();
    let mut process = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    process.arg(command).arg("--model").arg(folder).args(["--device", "cpu"]);
    process.arg("--input").arg(place.file("in.jsonl")).arg("--output").arg(place.file("out.jsonl"));
    if command == "generate" {
        process.args(["--max-new-tokens", "4"]);
    }
    let ended = Ended::of(process.output().unwrap());
    assert_eq!(place.file("out.jsonl").exists(), ended.code == Some(0), "all lines or none");
    ended
}

#[test]
fn score_and_generate_end_on_a_model_as_a_job_on_it_does() {
    const LINE: &str = "{\"id\": 1, \"tokens\": [5, 6, 7]}\n";
    type Damage = fn(&Path);
    let damages: [(Damage, i32, &str); 6] = [
        (|_| (), 0, ""),
        (|model| fs::remove_dir_all(model).unwrap(), 78, "config.json"),
        (|model| edit_config(model, |config| config["architectures"] = json!(["X"])), 78, "config.json"),
        (|model| fs::remove_file(weights(model)).unwrap(), 78, "model.safetensors"),
        (
            |model| edit_weights(model, |header, data| set(header, data, EMBEDDING, |_| true, f32::NAN)),
            78,
            "NaN",
        ),
        (overflow, 77, "finite"),
    ];
    for (damage, code, word) in damages {
        let place = Place::new();
        let model = place.file("model");
        copy_of_small_model(&model);
        damage(&model);
        for command in ["score", "generate"] {
            use_model(command, &model, LINE).expect(code, &[word]);
        }
    }
    for command in ["score", "generate"] {
        use_model(command, small_model(), "{\"id\": 1}\n").expect(78, &["in.jsonl, line 1"]);
    }
}

/// Writes weights that are finite but overflow in the first product.
fn overflow(model: &Path) {
    edit_weights(model, |header, data| {
        let gate = "model.layers.0.mlp.gate_proj.weight";
        let up = "model.layers.0.mlp.up_proj.weight";
        set(header, data, gate, |_| true, 1e30);
        set(header, data, up, |_| true, 1e30);
    });
}

/// Returns a job of nine steps whose losses are never finite. The run fails at the fourth such step in a row.
pub(crate) fn diverging(place: &Place) -> Value {
    let model = place.file("model");
    copy_of_small_model(&model);
    overflow(&model);
    on_files(
        &model,
        json!({
            "algorithm": { "kind": "SFT" }, "rewards": null, "data": { "task": { "numHeldOut": 0 } },
            "training": { "steps": 9, "maxConsecutiveNonFinite": 4, "evaluateBefore": false }
        }),
    )
}

#[test]
fn logits_that_are_not_finite_end_a_run_as_diverged() {
    train_damaged(json!({}), overflow).expect(77, &["finite"]);
}

#[test]
fn steps_with_a_non_finite_loss_are_skipped_and_counted_and_then_end_the_run() {
    let place = Place::new();
    place.train(&diverging(&place)).expect(77, &["4 steps in a row", "last step 4"]);
    let steps = place.steps();
    assert_eq!(steps.len(), 4);
    assert!(steps.iter().all(|step| step["training/num_skipped_updates"] == 1.0), "{steps:?}");
    assert!(!place.run("export").exists());
}

#[test]
fn a_hub_that_cannot_be_reached_is_worth_another_try() {
    // No server listens on port 1.
    let hub = json!({ "repo": "owner/name", "endpoint": "http://127.0.0.1:1" });
    let model = json!({ "architecture": null, "tokenizer": null, "hub": hub });
    Place::new().train(&tiny_with(json!({ "model": model }))).expect(75, &["owner/name", "main"]);
}

#[test]
fn an_adapter_on_a_layer_that_is_not_there_is_refused() {
    let lora = json!({ "targetModules": ["q_proj", "c_attn"] });
    Place::new().train(&tiny_with(json!({ "model": { "lora": lora } }))).expect(78, &["c_attn"]);
}
