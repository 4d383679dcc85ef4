//! Prompts with images: a tiny vision-language model of transformers' learns by GRPO to name colours that
//! only the image contains.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Rgb, RgbImage};
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
    // Letters have the tokens 33 to 119; nothing has 2 to 32 but a name.
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

/// An answer is right by its first letter: capitals for red, small letters for blue.
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
    // Without the image every answer is right for one half of the rows at most.
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

#[test]
fn an_adapter_of_the_text_is_trained_on_two_ranks_as_on_one() {
    let train = |ranks: u32| {
        let place = Place::new();
        let (model, rows) = (model(&place), rows(&place));
        let changes = json!({ "model": { "lora": { "rank": 4 } }, "workers": { "count": ranks } });
        place.train(&job(&model, &rows, changes)).expect(0, &[]);
        place
    };
    let difference = crate::ranks::difference(&train(1), &train(2));
    assert!(difference < crate::ranks::TOLERANCE, "{difference}");
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
