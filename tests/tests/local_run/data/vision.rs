//! Prompts with images: a tiny vision-language model of transformers' learns by GRPO to name colours that
//! only the image contains.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Rgb, RgbImage};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::job::{Ended, Place, merge, tiny_with};

/// Colours and the letter that an answer has to begin with.
const COLOURS: [(&str, [u8; 3]); 2] = [("red", [230, 20, 20]), ("blue", [20, 20, 230])];

/// The tiny Qwen2.5-VL of the trainer's fixtures with a tokenizer of letters and the special tokens of its
/// configuration.
fn model(place: &Place) -> PathBuf {
    let from = rlt_tests::workspace_root().join("trainer/tests/fixtures/vision/qwen2.5-vl");
    let folder = place.file("model");
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    let special = [
        (1, "<|endoftext|>"),
        (120, "<|image_pad|>"),
        (121, "<|video_pad|>"),
        (122, "<|vision_start|>"),
        (123, "<|vision_end|>"),
    ];
    // Letters have the tokens 33 to 119. The tokens 2 to 32 have only names.
    let name = |id: u32| match special.iter().find(|(other, _)| *other == id) {
        Some((_, name)) => (*name).to_owned(),
        None if (33..120).contains(&id) => char::from_u32(id + 3).unwrap().to_string(),
        None => format!("<{id}>"),
    };
    let vocab: serde_json::Map<String, Value> = (0..128).map(|id| (name(id), id.into())).collect();
    let added = special.map(|(id, content)| {
        json!({ "id": id, "content": content, "special": true, "normalized": false, "lstrip": false,
            "rstrip": false, "single_word": false })
    });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<0>" },
    });
    let template = "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
        {% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
        {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    let config = json!({ "eos_token": "<|endoftext|>", "chat_template": template });
    let processor =
        json!({ "patch_size": 4, "merge_size": 2, "size": { "shortest_edge": 64, "longest_edge": 1024 } });
    for (file, content) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        ("preprocessor_config.json", processor),
    ] {
        fs::write(folder.join(file), content.to_string()).unwrap();
    }
    folder
}

/// Rows whose texts are all the same and whose images differ, in verl's columns.
fn rows(place: &Place) -> PathBuf {
    let rows = (0..16_u8).map(|idx| {
        let (colour, rgb) = COLOURS[usize::from(idx) % 2];
        // Sizes and shades differ.
        let size = 16 + 8 * u32::from(idx % 3);
        let shade = |x: u32, y: u32| {
            Rgb(rgb.map(|byte| byte.saturating_add(((x * 7 + y * 3 + u32::from(idx)) % 11) as u8)))
        };
        let name = format!("{idx}.png");
        RgbImage::from_fn(size, 16, shade).save(place.file(&name)).unwrap();
        let prompt = [json!({ "role": "user", "content": "<image>which?" })];
        json!({ "prompt": prompt, "images": [{ "path": name }], "data_source": colour }).to_string() + "\n"
    });
    let file = place.file("rows.jsonl");
    fs::write(&file, rows.collect::<String>()).unwrap();
    file
}

/// An answer is right if its first letter is a capital for red, or a small letter for blue.
fn job(model: &Path, rows: &Path, changes: Value) -> Value {
    let of = |name: &str, pattern: &str| json!({ "name": name, "kind": "Format", "pattern": pattern, "dataSources": [name] });
    let mut manifest = tiny_with(json!({
        "model": { "architecture": null, "tokenizer": null, "path": model },
        "data": { "task": null, "train": [rows], "heldOut": [rows], "maxPromptTokens": 64 },
        "rewards": { "functions": [of("red", "^[$-V].*"), of("blue", "^[W-z].*")] },
        "rollout": { "samplesPerPrompt": 8, "maxCompletionTokens": 2 },
        "training": { "steps": 2, "promptsPerStep": 16, "optimizer": { "learningRate": 0.01 } },
        "checkpoint": { "everySteps": 0 },
    }));
    merge(&mut manifest["spec"], changes);
    manifest
}

#[test]
fn a_policy_learns_an_answer_that_only_the_image_contains() {
    let place = Place::new();
    let (model, rows) = (model(&place), rows(&place));
    let changes = json!({ "training": { "steps": 40, "evaluateBefore": true } });
    place.train(&job(&model, &rows, changes)).expect(0, &[]);
    let result: Value = serde_json::from_str(&fs::read_to_string(place.run("result.json")).unwrap()).unwrap();
    let reward = |name: &str| result[name].as_f64().unwrap();
    assert!(reward("held_out_reward_before") < 0.75, "{result}");
    // Without the image, an answer is right for at most one half of the rows.
    assert!(reward("held_out_reward_after") > 0.9, "{result}");
    for file in ["preprocessor_config.json", "config.json", "model.safetensors"] {
        assert!(place.run("export").join(file).is_file(), "the export lacks {file}");
    }
}

#[test]
fn demonstrations_with_images_teach_what_only_the_image_says() {
    let place = Place::new();
    let model = model(&place);
    let rows = rows(&place);
    let shown: String = fs::read_to_string(&rows).unwrap().lines().fold(String::new(), |shown, line| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        row["response"] = if row["data_source"] == "red" { "AB" } else { "ab" }.into();
        shown + &row.to_string() + "\n"
    });
    let demonstrations = place.file("shown.jsonl");
    fs::write(&demonstrations, shown).unwrap();
    let changes = json!({
        "data": { "train": [demonstrations] },
        "algorithm": { "kind": "SFT", "coldStart": null },
        "rollout": { "samplesPerPrompt": 1 },
        "training": { "steps": 40, "evaluateBefore": true },
    });
    place.train(&job(&model, &rows, changes)).expect(0, &[]);
    let result: Value = serde_json::from_str(&fs::read_to_string(place.run("result.json")).unwrap()).unwrap();
    let reward = |name: &str| result[name].as_f64().unwrap();
    assert!(reward("held_out_reward_before") < 0.75, "{result}");
    assert!(reward("held_out_reward_after") > 0.9, "{result}");
}

/// Returns the number of B matrices of the vision tower in an exported adapter. All must have changed, as
/// they start at zero.
fn trained_in_tower(adapter: &Path) -> usize {
    let bytes = fs::read(adapter.join("adapter_model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let of_tower = |name: &str| name.contains("model.visual.") && name.contains("lora_B");
    let matrices: Vec<_> = tensors.iter().filter(|(name, _)| of_tower(name)).collect();
    for (name, matrix) in &matrices {
        assert!(matrix.data().iter().any(|byte| *byte != 0), "{name}");
    }
    matrices.len()
}

#[test]
fn an_adapter_of_text_and_tower_is_trained_on_two_ranks_as_on_one() {
    let train = |workers: Value| {
        let place = Place::new();
        let (model, rows) = (model(&place), rows(&place));
        // The tower's gradients are small, and the optimizer amplifies their rounding errors to the learning
        // rate.
        let changes = json!({
            "model": { "lora": { "rank": 4, "vlmLora": "Both" } },
            "training": { "optimizer": { "learningRate": 0.001 } },
            "workers": workers,
        });
        place.train(&job(&model, &rows, changes)).expect(0, &[]);
        place
    };
    let one = train(json!({ "count": 1 }));
    // Two blocks of five linear layers, and two of the merger.
    assert_eq!(trained_in_tower(&one.run("export/adapter")), 12);
    for workers in [json!({ "count": 2 }), json!({ "count": 2, "mesh": { "dpShard": 2 } })] {
        let difference = crate::ranks::difference(&one, &train(workers));
        assert!(difference < crate::ranks::TOLERANCE, "{difference}");
    }
}

#[test]
fn an_adapter_of_the_tower_is_resumed_and_continued() {
    let train = |place: &Place, steps: u64, more: Value| {
        let (model, rows) = (place.file("model"), place.file("rows.jsonl"));
        let mut changes = json!({
            "model": { "lora": { "rank": 4, "dropout": 0.1, "vlmLora": "Vision" } },
            "training": { "steps": steps, "activationCheckpointing": true },
        });
        merge(&mut changes, more);
        place.train(&job(&model, &rows, changes))
    };
    let place = || {
        let place = Place::new();
        let (_, _) = (model(&place), rows(&place));
        place
    };
    let (whole, resumed) = (place(), place());
    train(&whole, 4, json!({})).expect(0, &[]);
    train(&resumed, 2, json!({})).expect(0, &[]);
    train(&resumed, 4, json!({})).expect(0, &["resuming after step 2"]);
    crate::resume::assert_same_run(&whole, &resumed);
    let adapter = whole.run("export/adapter");
    assert_eq!(trained_in_tower(&adapter), 12);
    let continued = place();
    train(&continued, 1, json!({ "model": { "lora": { "adapterPath": adapter } } })).expect(0, &[]);
    let text = json!({ "model": { "lora": { "adapterPath": adapter, "vlmLora": "Text" } } });
    train(&place(), 1, text).expect(78, &["expected modules of Text (vlmLora), got of Vision"]);
}

/// The reference has the initial tower, and the critic trains its own tower, too.
#[test]
fn a_trained_tower_is_resumed_and_is_the_same_on_two_ranks() {
    let train = |place: &Place, steps: u64, more: Value| {
        let mut changes = json!({
            "model": { "visionTower": "Trained" },
            "algorithm": { "kind": "PPO", "kl": { "placement": "Loss", "coefficient": 0.1 } },
            "training": { "steps": steps, "optimizer": { "learningRate": 0.0005 } },
        });
        merge(&mut changes, more);
        place.train(&job(&place.file("model"), &place.file("rows.jsonl"), changes))
    };
    let place = || {
        let place = Place::new();
        let (_, _) = (model(&place), rows(&place));
        place
    };
    let (whole, resumed) = (place(), place());
    train(&whole, 4, json!({})).expect(0, &[]);
    train(&resumed, 2, json!({})).expect(0, &[]);
    train(&resumed, 4, json!({})).expect(0, &["resuming after step 2"]);
    crate::resume::assert_same_run(&whole, &resumed);
    let exported = |place: &Place| fs::read(place.run("export/model.safetensors")).unwrap();
    let (before, after) = (fs::read(whole.file("model/model.safetensors")).unwrap(), exported(&whole));
    let tower = |bytes: &[u8]| {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let of_tower = tensors
            .iter()
            .filter(|(name, _)| name.starts_with("visual."))
            .map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec()));
        of_tower.collect::<std::collections::BTreeMap<_, _>>()
    };
    let (before, after) = (tower(&before), tower(&after));
    assert!(before.keys().eq(after.keys()) && before.iter().all(|(name, own)| *own != after[name]));
    let sharded = json!({ "workers": { "count": 2, "mesh": { "dpShard": 2 } } });
    let offload = json!({ "parameters": true, "optimizer": true, "activations": true });
    let offloaded = json!({ "training": { "activationCheckpointing": true, "offload": offload } });
    for changes in [json!({ "workers": { "count": 2 } }), sharded.clone(), offloaded] {
        let many = place();
        train(&many, 4, changes.clone()).expect(0, &[]);
        let difference = crate::ranks::difference(&whole, &many);
        assert!(difference < crate::ranks::TOLERANCE, "{changes}: {difference}");
        // One process exports the checkpoint.
        let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
        Ended::of(command.arg("export").arg(many.run("")).output().unwrap()).expect(0, &["step 4"]);
        assert!(fs::read(many.run("exports/step-000004/model.safetensors")).unwrap() == exported(&many));
    }
    // Shards continue from a checkpoint of one process.
    let widened = place();
    train(&widened, 2, json!({})).expect(0, &[]);
    train(&widened, 4, sharded).expect(0, &["resuming after step 2"]);
    let difference = crate::ranks::difference(&whole, &widened);
    assert!(difference < crate::ranks::TOLERANCE, "{difference}");
}

/// The example's tower is new, so its adapter reads pictures from the first step.
#[test]
fn the_example_trains_an_adapter_of_its_new_tower() {
    let example = rlt_tests::workspace_root().join("examples/vision/job.yaml");
    let example = fs::read_to_string(example).unwrap();
    let lora = "    lora: {rank: 4, vlmLora: Both}\n    architecture:\n";
    let steps = [("steps: 150", "steps: 3"), ("steps: 60", "steps: 2"), ("warmupSteps: 5", "warmupSteps: 1")];
    let manifest = steps.iter().fold(example, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let place = Place::new();
    fs::write(place.file("job.yaml"), manifest.replace("    architecture:\n", lora)).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.args(["run", "job.yaml"]).current_dir(place.file("")).output().unwrap()).expect(0, &[]);
    // One block of five linear layers, and two of the merger.
    assert_eq!(trained_in_tower(&place.file("runs/vision/export/adapter")), 7);
}

#[test]
fn an_image_outside_of_the_folder_of_its_row_is_read_only_if_the_manifest_allows_it() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let (model, rows) = (model(&place), rows(&place));
    fs::rename(place.file("3.png"), elsewhere.file("3.png")).unwrap();
    std::os::unix::fs::symlink(elsewhere.file("3.png"), place.file("3.png")).unwrap();
    let said = ["rows.jsonl row 4", "outside of the data file's folder", "data.imageFolders"];
    place.train(&job(&model, &rows, json!({}))).expect(78, &said);
    let allowed = json!({ "data": { "imageFolders": [elsewhere.file("")] } });
    elsewhere.train(&job(&model, &rows, allowed)).expect(0, &[]);
}

#[test]
fn images_that_cannot_be_used_end_a_job_with_their_row() {
    let place = Place::new();
    let (model, rows) = (model(&place), rows(&place));
    fs::write(place.file("3.png"), "no image").unwrap();
    let said = ["rows.jsonl row 4", "decode image 1"];
    place.train(&job(&model, &rows, json!({}))).expect(78, &said);
    let text = tiny_with(json!({
        "data": { "task": null, "train": [rows] , "maxPromptTokens": 64 },
        "model": {
            "architecture": { "maxPositionEmbeddings": 128 },
            "tokenizer": { "characters": "0123456789+=<>imagewhc?" },
        },
    }));
    let said = ["rows.jsonl row 1", "the model has no vision tower"];
    Place::new().train(&text).expect(78, &said);
}

#[test]
fn rows_are_shown_with_the_tokens_of_their_images() {
    let place = Place::new();
    let manifest = place.write(&job(&model(&place), &rows(&place), json!({})));
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    let shown = Ended::of(command.args(["data", "-f"]).arg(manifest).output().unwrap());
    // 16 x 16 pixels are four pieces between start and end, then six letters.
    shown.expect(0, &["<|vision_start|><|image_pad|>", "12 tokens"]);
}
