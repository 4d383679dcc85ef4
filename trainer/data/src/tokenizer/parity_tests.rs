//! Equality with transformers, on fixtures that it made (`tests/fixtures/{chat,tokenizer}/make.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[derive(Deserialize)]
struct ChatFixture {
    conversations: BTreeMap<String, Vec<Value>>,
    tools: Vec<Value>,
    #[serde(flatten)]
    templates: BTreeMap<String, TemplateCases>,
}

#[derive(Deserialize)]
struct TemplateCases {
    special: BTreeMap<String, String>,
    cases: Vec<ChatCase>,
}

#[derive(Debug, Deserialize)]
struct ChatCase {
    conversation: String,
    tools: bool,
    add_generation_prompt: bool,
    variables: Map<String, Value>,
    /// Rendered text; `None` if transformers raised an exception.
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn conversations_render_as_transformers_renders_them() {
    let text = fs::read_to_string(fixture("chat/cases.json")).unwrap();
    let fixture_data: ChatFixture = serde_json::from_str(&text).unwrap();
    assert_eq!(fixture_data.templates.len(), 6);
    let mut differences = Vec::new();
    for (name, template) in &fixture_data.templates {
        let source = fs::read_to_string(fixture(&format!("chat/templates/{name}.jinja"))).unwrap();
        let compiled = ChatTemplate::new(&source).unwrap();
        let token = |role: &str| template.special.get(role).cloned();
        let special = SpecialTokens {
            bos: token("bos_token"),
            eos: token("eos_token"),
            pad: token("pad_token"),
            unk: token("unk_token"),
            ..SpecialTokens::default()
        };
        for case in &template.cases {
            let request = ChatRequest {
                messages: &fixture_data.conversations[&case.conversation],
                tools: case.tools.then_some(&fixture_data.tools),
                add_generation_prompt: case.add_generation_prompt,
                variables: Some(&case.variables),
            };
            let ours = compiled.render(&request, &special);
            differences.extend(difference(case, ours).map(|text| format!("{name}, {text}")));
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences[..differences.len().min(5)].join("\n")
    );
}

fn difference(case: &ChatCase, ours: Result<String, ChatError>) -> Option<String> {
    match (&case.text, &case.error, ours) {
        (Some(theirs), _, Ok(ours)) if *theirs == ours => None,
        (None, Some(theirs), Err(ChatError::Render { source, .. }))
            if source.to_string().contains(theirs) =>
        {
            None
        }
        (_, _, Ok(ours)) => Some(format!("{case:?}\nours: {ours:?}")),
        (_, _, Err(error)) => Some(format!("{case:?}\nours: {error:?}")),
    }
}

/// The alphabet of `tests/fixtures/tokenizer/characters`.
const ALPHABET: &str = "0123456789+-*= ";

#[derive(Deserialize)]
struct FolderFixture {
    special: BTreeMap<String, Option<String>>,
    vocab_len: usize,
    cases: Vec<TextCase>,
}

#[derive(Debug, Deserialize)]
struct TextCase {
    text: String,
    tokens: Vec<u32>,
    plain: Vec<u32>,
    decoded: String,
    verbatim: String,
}

fn folder_fixture(name: &str) -> FolderFixture {
    let text = fs::read_to_string(fixture("tokenizer/cases.json")).unwrap();
    let mut folders: BTreeMap<String, FolderFixture> = serde_json::from_str(&text).unwrap();
    folders.remove(name).unwrap()
}

fn assert_equal(tokenizer: &Tokenizer, expected: &FolderFixture) {
    assert_eq!(tokenizer.vocab_len(), expected.vocab_len);
    for (role, token) in tokenizer.special_tokens().by_role() {
        assert_eq!(token, expected.special[role].as_deref(), "{role}");
    }
    for case in &expected.cases {
        assert_eq!(tokenizer.encode(&case.text).unwrap(), case.tokens, "{case:?}");
        assert_eq!(tokenizer.encode_rendered(&case.text).unwrap(), case.plain, "{case:?}");
        assert_eq!(tokenizer.decode(&case.plain).unwrap(), case.decoded, "{case:?}");
        assert_eq!(tokenizer.decode_verbatim(&case.tokens).unwrap(), case.verbatim, "{case:?}");
    }
}

fn folder_of(tokenizer: &Tokenizer) -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().unwrap();
    tokenizer.save(dir.path()).unwrap();
    dir
}

#[test]
fn the_character_tokenizer_is_the_one_transformers_loads() {
    let built = Tokenizer::characters(ALPHABET).unwrap();
    let saved = folder_of(&built);
    for file in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        let ours = fs::read_to_string(saved.path().join(file)).unwrap();
        let committed = fs::read_to_string(fixture("tokenizer/characters").join(file)).unwrap();
        assert_eq!(ours, committed, "{file}: save the fixture anew and run its make.py");
    }
    let expected = folder_fixture("characters");
    assert_equal(&built, &expected);
    assert_equal(&Tokenizer::load(saved.path()).unwrap(), &expected);
}

#[test]
fn a_folder_of_transformers_encodes_equally_and_survives_saving() {
    let loaded = Tokenizer::load(&fixture("tokenizer/byte_pairs")).unwrap();
    let expected = folder_fixture("byte_pairs");
    assert_equal(&loaded, &expected);
    assert_eq!(loaded.eos_ids(), [1, 4], "the tokenizer's own first, then generation_config.json's");
    let saved = Tokenizer::load(folder_of(&loaded).path()).unwrap();
    assert_equal(&saved, &expected);
    assert!(saved.has_chat_template());
}

#[test]
fn a_replaced_chat_template_is_saved_in_place_of_the_old() {
    let loaded = Tokenizer::load(&fixture("tokenizer/byte_pairs")).unwrap();
    let dir = folder_of(&loaded.with_chat_template("new").unwrap());
    let again = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(again.render_chat(&ChatRequest::default()).unwrap(), "new");
}

/// The order of transformers' `PreTrainedTokenizerBase._from_pretrained`.
#[test]
fn files_of_templates_replace_all_templates_of_the_configuration() {
    let dir = tempfile::TempDir::new().unwrap();
    let definition = "tokenizer.json";
    fs::copy(fixture("tokenizer/byte_pairs").join(definition), dir.path().join(definition)).unwrap();
    let config = fs::read_to_string(fixture("tokenizer/byte_pairs/tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    let mut rendered = |templates: &Value| {
        config["chat_template"] = templates.clone();
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let render = |tools| tokenizer.render_chat(&ChatRequest { tools, ..ChatRequest::default() }).unwrap();
        [render(None), render(Some(&[]))]
    };
    let list = serde_json::json!([
        { "name": "default", "template": "a" }, { "name": "tool_use", "template": "b" }
    ]);
    let object = serde_json::json!({ "default": "a", "tool_use": "b" });
    for templates in [&list, &object] {
        assert_eq!(rendered(templates), ["a", "b"]);
    }
    assert_eq!(rendered(&"c".into()), ["c", "c"]);
    fs::write(dir.path().join("chat_template.jinja"), "d").unwrap();
    for templates in [&list, &object, &"c".into()] {
        assert_eq!(rendered(templates), ["d", "d"]);
    }
    fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    fs::write(dir.path().join("additional_chat_templates/tool_use.jinja"), "e").unwrap();
    assert_eq!(rendered(&list), ["d", "e"]);
}

/// Special tokens with names are those of `special_tokens_map` in transformers 5.17, objects of extra tokens
/// included.
#[test]
fn chat_templates_print_every_special_token_that_has_a_name() {
    let dir = tempfile::TempDir::new().unwrap();
    let definition = "tokenizer.json";
    fs::copy(fixture("tokenizer/byte_pairs").join(definition), dir.path().join(definition)).unwrap();
    let config = serde_json::json!({
        "eos_token": "<|end|>", "sep_token": "<sep>", "cls_token": {"content": "<cls>"}, "mask_token": null,
        "add_bos_token": true, "image_token": "<image>", "extra_special_tokens": {"boi_token": "<boi>"},
        "model_specific_special_tokens": {"eoi_token": "<eoi>"}
    });
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(dir.path().join("special_tokens_map.json"), r#"{"video_token": "<video>"}"#).unwrap();
    let names = [
        "eos_token",
        "sep_token",
        "cls_token",
        "mask_token",
        "add_bos_token",
        "image_token",
        "boi_token",
        "eoi_token",
        "video_token",
        "extra_special_tokens",
    ];
    let template: String = names.iter().map(|name| format!("{{{{ {name} }}}}|")).collect();
    let tokenizer = Tokenizer::load(dir.path()).unwrap().with_chat_template(&template).unwrap();
    let text = tokenizer.render_chat(&ChatRequest::default()).unwrap();
    assert_eq!(text, "<|end|>|<sep>|<cls>|||<image>|<boi>|<eoi>|<video>||");
}

/// Loads a folder with the definition of `byte_pairs`, further fields of its configuration, and
/// `added_tokens.json`.
fn with_added(fields: Value, added: &Value) -> Tokenizer {
    let dir = tempfile::TempDir::new().unwrap();
    let from = fixture("tokenizer/byte_pairs");
    fs::copy(from.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let config = fs::read_to_string(from.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(dir.path().join("added_tokens.json"), added.to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

/// `TokenizersBackend.__init__` of transformers 5.17 adds a listed token again if any of its fields differs.
#[test]
fn the_configuration_decides_how_a_token_takes_white_space_around_it() {
    let listed = |left: bool| {
        let user = serde_json::json!({
            "content": "<|user|>", "lstrip": left, "rstrip": false, "single_word": false,
            "normalized": false, "special": true
        });
        with_added(serde_json::json!({"added_tokens_decoder": {"2": user}}), &serde_json::json!({}))
    };
    let encode = |tokenizer: &Tokenizer, text: &str| tokenizer.encode_rendered(text).unwrap();
    let (takes, leaves) = (listed(true), listed(false));
    assert_eq!(encode(&takes, "a  <|user|>"), encode(&leaves, "a<|user|>"));
    assert_ne!(encode(&leaves, "a  <|user|>"), encode(&leaves, "a<|user|>"));
    assert_eq!(takes.vocab_len(), leaves.vocab_len());
}

/// Files of releases before `added_tokens_decoder`.
#[test]
fn tokens_of_added_tokens_json_are_added_unless_the_configuration_lists_tokens() {
    let none = serde_json::json!({});
    let plain = with_added(none.clone(), &none);
    let next = u32::try_from(plain.vocab_len()).unwrap();
    let added = serde_json::json!({"<new>": next, "<|user|>": 2});
    let old = with_added(serde_json::json!({"extra_special_tokens": ["<new>"]}), &added);
    assert_eq!(old.encode_rendered("<new><|user|>").unwrap(), [next, 2]);
    assert_eq!(old.decode(&[next, 2]).unwrap(), "");
    let shown = with_added(none.clone(), &added);
    assert_eq!(shown.encode_rendered("<new>").unwrap(), [next]);
    assert_eq!(shown.decode(&[next]).unwrap(), "<new>");
    let listed = with_added(serde_json::json!({"added_tokens_decoder": none}), &added);
    assert_eq!(listed.encode_rendered("<new>").unwrap(), plain.encode_rendered("<new>").unwrap());
}

#[test]
fn offsets_point_at_the_text_of_each_token() {
    let tokenizer = Tokenizer::load(&fixture("tokenizer/byte_pairs")).unwrap();
    let text = "<|user|>café<|end|><|assistant|>world<|end|>";
    let encoded = tokenizer.encode_with_offsets(text).unwrap();
    let tokens: Vec<u32> = encoded.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, tokenizer.encode_rendered(text).unwrap());
    let end = tokenizer.token_id("<|end|>").unwrap();
    let of_end = encoded.iter().filter(|(token, _)| *token == end);
    let ends: Vec<&str> = of_end.map(|(_, bytes)| &text[bytes.clone()]).collect();
    assert_eq!(ends, ["<|end|>", "<|end|>"]);
}

#[test]
fn ending_tokens_of_a_text_model_within_a_larger_one_are_read() {
    let dir = tempfile::TempDir::new().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture("tokenizer/byte_pairs").join(file), dir.path().join(file)).unwrap();
    }
    let eos_ids = |config: Value| {
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        Tokenizer::load(dir.path()).unwrap().eos_ids().to_vec()
    };
    assert_eq!(eos_ids(serde_json::json!({"text_config": {"eos_token_id": [4]}})), [1, 4]);
    assert_eq!(eos_ids(serde_json::json!({"eos_token_id": 3, "text_config": {"eos_token_id": 4}})), [1, 3]);
    assert_eq!(eos_ids(serde_json::json!({"text_config": {}})), [1]);
}

#[test]
fn broken_folders_are_refused_by_file() {
    let dir = tempfile::TempDir::new().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(
        matches!(error, TokenizerError::Read { .. }) && error.to_string().contains("tokenizer.json"),
        "{error}"
    );
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("tokenizer.json", "{\"model\": 3}");
    assert!(matches!(Tokenizer::load(dir.path()), Err(TokenizerError::Definition { .. })));
    fs::copy(fixture("tokenizer/byte_pairs/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    assert!(matches!(Tokenizer::load(dir.path()), Err(TokenizerError::NoEos { .. })));
    write("tokenizer_config.json", "{");
    assert!(matches!(Tokenizer::load(dir.path()), Err(TokenizerError::Parse { .. })));
    write("tokenizer_config.json", "{\"eos_token\": {\"content\": \"<nowhere>\"}}");
    assert!(matches!(Tokenizer::load(dir.path()), Err(TokenizerError::MissingToken { .. })));
    write("tokenizer_config.json", "{\"eos_token\": \"</s>\", \"chat_template\": \"{% if %}\"}");
    let Err(TokenizerError::Chat(error)) = Tokenizer::load(dir.path()) else { panic!("refused") };
    assert!(matches!(*error, ChatError::Syntax { .. }));
}

/// transformers gives each special token of `tokenizer_config.json` one id, whether it is in the vocabulary
/// or not.
#[test]
fn special_tokens_that_only_the_configuration_names_are_one_token_each() {
    let dir = tempfile::TempDir::new().unwrap();
    let definition = fs::read(fixture("tokenizer/byte_pairs/tokenizer.json")).unwrap();
    let config = fs::read_to_string(fixture("tokenizer/byte_pairs/tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let load = |fields: Value, map: Value| {
        let mut config = config.clone();
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        fs::write(dir.path().join("tokenizer.json"), &definition).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("special_tokens_map.json"), map.to_string()).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    };
    let plain = load(serde_json::json!({}), serde_json::json!({}));
    let next = u32::try_from(plain.vocab_len()).unwrap();
    let object = serde_json::json!({"content": "<b>", "lstrip": false, "special": true});
    for (fields, map) in [
        (serde_json::json!({"extra_special_tokens": ["<a>", object]}), serde_json::json!({})),
        (serde_json::json!({"additional_special_tokens": ["<a>", "<b>"]}), serde_json::json!({})),
        (serde_json::json!({"extra_special_tokens": {"one": "<a>", "two": "<b>"}}), serde_json::json!({})),
        (serde_json::json!({}), serde_json::json!({"additional_special_tokens": ["<a>", object]})),
        (
            serde_json::json!({"extra_special_tokens": {}, "additional_special_tokens": ["<a>", "<b>"]}),
            serde_json::json!({}),
        ),
        (serde_json::json!({"image_token": "<a>", "video_token": object}), serde_json::json!({})),
        (
            serde_json::json!({"add_bos_token": true, "audio_token": "<a>"}),
            serde_json::json!({"eoi_token": "<b>"}),
        ),
        (
            serde_json::json!({"extra_special_tokens": ["<a>"]}),
            serde_json::json!({"extra_special_tokens": ["<b>"]}),
        ),
    ] {
        let tokenizer = load(fields.clone(), map);
        assert_eq!(tokenizer.encode_rendered("<a><b>").unwrap(), [next, next + 1], "{fields}");
        assert_eq!(tokenizer.decode(&[next, next + 1]).unwrap(), "", "{fields}");
        assert_ne!(plain.encode_rendered("<a><b>").unwrap().len(), 2);
    }
}

/// transformers 5 reads `special_tokens_map.json` only if the configuration has no `added_tokens_decoder`.
#[test]
fn the_map_of_special_tokens_takes_precedence_over_a_configuration_without_added_tokens() {
    let eos = |fields: Value| {
        let dir = tempfile::TempDir::new().unwrap();
        fs::copy(fixture("tokenizer/byte_pairs/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), fields.to_string()).unwrap();
        fs::write(dir.path().join("special_tokens_map.json"), "{\"eos_token\": \"<|end|>\"}").unwrap();
        Tokenizer::load(dir.path()).unwrap().special_tokens().eos.clone().unwrap()
    };
    assert_eq!(eos(serde_json::json!({"eos_token": "</s>"})), "<|end|>");
    assert_eq!(eos(serde_json::json!({"eos_token": "</s>", "added_tokens_decoder": {}})), "</s>");
    assert_eq!(eos(serde_json::json!({"added_tokens_decoder": {}})), "<|end|>");
}

#[test]
fn a_field_that_would_change_tokens_is_refused_with_file_name_and_value() {
    let dir = tempfile::TempDir::new().unwrap();
    fs::copy(fixture("tokenizer/byte_pairs/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let load = |fields: &str| {
        fs::write(dir.path().join("tokenizer_config.json"), fields).unwrap();
        Tokenizer::load(dir.path())
    };
    load("{\"eos_token\": \"</s>\", \"split_special_tokens\": false}").unwrap();
    let error = load("{\"eos_token\": \"</s>\", \"split_special_tokens\": true}").unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json: field `split_special_tokens`: true is not"), "{error}");
}
