//! Rows with images, and generated pictures, as prompts and as demonstrations.

use rlt_api::spec::VisionSpec;

use super::*;

/// One token for each 8 x 8 pixels.
fn tokenizer() -> Tokenizer {
    let tower = json!({ "hiddenSize": 16, "numLayers": 1, "numHeads": 2, "patchSize": 4 });
    let tower: VisionSpec = serde_json::from_value(tower).unwrap();
    let alphabet: String = (' '..='~').collect();
    Tokenizer::characters_and_images(&alphabet).unwrap().with_new_tower(&tower).unwrap()
}

fn pictures(changes: Value) -> DataSpec {
    let mut task = json!({
        "kind": "CountingPictures", "pictures": { "cells": 3, "cellPixels": 8, "maxCount": 9 }, "numTrain": 20,
        "numHeldOut": 5
    });
    task.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    DataSpec { task: Some(serde_json::from_value(task).unwrap()), ..DataSpec::default() }
}

fn demonstrations(spec: &DataSpec) -> Result<Dataset<Demonstration>, DataError> {
    Dataset::demonstrations(spec, Split::Train, &tokenizer(), 64)
}

/// The error of reading `rows` as demonstrations, with its cause.
fn refusal(rows: &[Value]) -> String {
    let error = demonstrations(&Files::rows(rows).spec).unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

fn png() -> String {
    format!("data:image/png;base64,{}", {
        use base64::Engine as _;
        base64::prelude::BASE64_STANDARD.encode(crate::images::png(8, &[9; 8 * 8 * 3]).unwrap())
    })
}

#[test]
fn a_demonstration_has_the_images_of_its_prompt_and_learns_none_of_their_tokens() {
    let (spec, tokenizer) = (pictures(json!({})), tokenizer());
    let prompts = Dataset::prompts(&spec, Split::Train, &tokenizer).unwrap();
    let demonstrations = demonstrations(&spec).unwrap();
    assert_eq!((prompts.len(), demonstrations.len()), (20, 20));
    for (prompt, shown) in prompts.items().iter().zip(demonstrations.items().iter()) {
        assert_eq!(prompt.text, "<|vision_start|><|image_pad|><|vision_end|>how many?");
        assert_eq!(prompt.tokens.len(), 2 + 9 + "how many?".len(), "3 x 3 cells are 9 tokens");
        assert_eq!(shown.tokens[..prompt.tokens.len()], prompt.tokens);
        assert_eq!(shown.images, prompt.images);
        let learned: Vec<u32> = shown.tokens[prompt.tokens.len()..].to_vec();
        assert_eq!(json!(tokenizer.decode(&learned).unwrap()), prompt.ground_truth);
        assert_eq!(learned.last(), tokenizer.eos_ids().first());
        assert_eq!(shown.loss_mask.iter().filter(|learned| **learned).count(), learned.len());
    }
}

#[test]
fn generated_pictures_are_the_same_on_every_machine() {
    let digest =
        Dataset::prompts(&pictures(json!({})), Split::Train, &tokenizer()).unwrap().digest().to_owned();
    assert_eq!(digest, demonstrations(&pictures(json!({}))).unwrap().digest());
    let more = Dataset::prompts(&pictures(json!({ "numTrain": 21 })), Split::Train, &tokenizer()).unwrap();
    assert_ne!(digest, more.digest());
}

#[test]
fn images_and_placeholders_that_do_not_fit_are_refused_by_their_row() {
    let ask = |content: &str| json!([{ "role": "user", "content": content }]);
    let one = |prompt: Value, images: Value| json!({ "prompt": prompt, "images": images, "response": "1" });
    let said = refusal(&[one(ask("<image>?"), json!([]))]);
    assert!(said.contains("rows.jsonl row 1"), "{said}");
    assert!(said.contains("place 0 images of the row: its messages have 1 placeholders"), "{said}");
    assert!(said.contains("data.imagesKey"), "{said}");
    let said = refusal(&[one(ask("?"), json!([png()]))]);
    assert!(said.contains("place 1 images of the row: its messages have 0 placeholders"), "{said}");
    let said = refusal(&[one(ask("<image>?"), json!([{ "bytes": "Z2FyYmFnZQ==" }]))]);
    assert!(said.contains("decode image 1"), "{said}");
    let behind = json!([
        { "role": "user", "content": "?" }, { "role": "assistant", "content": "1" },
        { "role": "user", "content": "<image>?" }, { "role": "assistant", "content": "2" }
    ]);
    let said = refusal(&[json!({ "messages": behind, "images": [png()] })]);
    assert!(said.contains("stands behind the assistant's first answer"), "{said}");
    let prompt = Files::rows(&[json!({ "prompt": "<image>?" })]);
    let error = Dataset::prompts(&prompt.spec, Split::Train, &tokenizer()).unwrap_err();
    assert!(matches!(error, DataError::Images { .. }), "{error}");
}

#[test]
fn a_text_with_an_image_becomes_the_message_of_a_user() {
    let rows = [json!({ "prompt": "<image>?", "images": [png()], "response": "1" })];
    let files = Files::rows(&rows);
    let shown = demonstrations(&files.spec).unwrap();
    let text = tokenizer().decode_verbatim(&shown.items()[0].tokens).unwrap();
    assert_eq!(text, "<|vision_start|><|image_pad|><|vision_end|>?1<eos>");
}

#[test]
fn a_row_that_its_image_makes_too_long_says_so_and_is_never_cut() {
    let with =
        |overlong| DataSpec { max_prompt_tokens: 10, overlong_prompts: overlong, ..pictures(json!({})) };
    let read = |overlong| Dataset::prompts(&with(overlong), Split::Train, &tokenizer());
    let error = read(OverlongPrompts::Error).unwrap_err().to_string();
    assert!(error.ends_with("20 tokens, 9 of them of images, expected at most 10"), "{error}");
    for overlong in [OverlongPrompts::Filter, OverlongPrompts::TruncateLeft, OverlongPrompts::TruncateRight] {
        let error = read(overlong).unwrap_err();
        assert!(matches!(error, DataError::Empty { num_filtered: 20, .. }), "{error}");
    }
    let cut = DataSpec { overlong_prompts: OverlongPrompts::TruncateLeft, ..pictures(json!({})) };
    let error = Dataset::demonstrations(&cut, Split::Train, &tokenizer(), 10).unwrap_err();
    assert!(matches!(error, DataError::Empty { num_filtered: 20, .. }), "{error}");
}

#[test]
fn a_tokenizer_without_tokens_of_images_is_refused_by_the_first_that_it_lacks() {
    let tower = json!({ "hiddenSize": 16, "numLayers": 1, "numHeads": 2 });
    let tower: VisionSpec = serde_json::from_value(tower).unwrap();
    let error = Tokenizer::characters("ab").unwrap().with_new_tower(&tower).unwrap_err().to_string();
    assert!(error.contains("<|image_pad|>"), "{error}");
}
