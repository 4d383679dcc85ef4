//! Settings of `tokenizer_config.json` that would change tokens and are not obeyed.

use std::path::Path;

use rlt_models::{ModelFile, RefusedField};
use serde_json::{Map, Value};

use super::TokenizerError;
use super::folder::{CONFIG, read_object};

/// Field that makes transformers replace the pattern of a tokenizer of Mistral.
const FIX_MISTRAL: &str = "fix_mistral_regex";
/// Model types of Mistral.
const OF_MISTRAL: [&str; 5] = ["mistral", "mistral3", "voxtral", "ministral", "pixtral"];
/// Size above which a vocabulary of Mistral has the pattern that may be replaced.
const MIN_TEKKEN_VOCAB: usize = 100_000;
/// Corrected pattern of Mistral's tokenizers.
const FIXED_PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Field that says whether a space is added in front of a text.
const PREFIX: &str = "add_prefix_space";
/// Tokenizer classes of transformers 5 that take only vocabulary and merges from `tokenizer.json` and build
/// their pre-tokenizer from [`PREFIX`].
const BUILT_WITH_PREFIX: [&str; 6] = [
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "Qwen2Tokenizer",
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
];
/// Model types whose tokenizers transformers 5 loads from `tokenizer.json` unchanged, whatever their class.
const LOADED_UNCHANGED: [&str; 12] = [
    "mistral",
    "ministral",
    "mixtral",
    "olmo2",
    "olmo3",
    "granite",
    "glm",
    "glm4",
    "phi3",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
];

/// Refuses a field of the configuration that would change tokens and is not obeyed.
pub(super) fn refuse_unsupported(dir: &Path, config: &Map<String, Value>) -> Result<(), TokenizerError> {
    match ModelFile::TokenizerConfig.refused_field(config) {
        None => Ok(()),
        Some(refused) => {
            Err(TokenizerError::Unsupported { path: dir.join(CONFIG), refused: Box::new(refused) })
        }
    }
}

/// Refuses a definition whose pattern transformers would replace, because `fix_mistral_regex` is set.
pub(super) fn refuse_old_pattern(
    dir: &Path,
    config: &Map<String, Value>,
    inner: &tokenizers::Tokenizer,
) -> Result<(), TokenizerError> {
    if config.get(FIX_MISTRAL) != Some(&Value::Bool(true)) || inner.get_vocab_size(true) <= MIN_TEKKEN_VOCAB {
        return Ok(());
    }
    let model = read_object(&dir.join("config.json"))?.unwrap_or_default();
    let splitting = serde_json::to_value(inner.get_pre_tokenizer()).unwrap_or_default();
    if !is_old_mistral(&model) || has_fixed_pattern(&splitting) {
        return Ok(());
    }
    let refused = RefusedField {
        field: FIX_MISTRAL.to_owned(),
        got: "true".to_owned(),
        supported: "a tokenizer.json with the corrected pattern, as save_pretrained of transformers writes it",
    };
    Err(TokenizerError::Unsupported { path: dir.join(CONFIG), refused: Box::new(refused) })
}

/// Refuses a definition that contradicts `add_prefix_space` where transformers would follow the field.
pub(super) fn refuse_other_prefix(
    dir: &Path,
    config: &Map<String, Value>,
    inner: &tokenizers::Tokenizer,
) -> Result<(), TokenizerError> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let stated = config.get(PREFIX).and_then(Value::as_bool).filter(|_| BUILT_WITH_PREFIX.contains(&class));
    let Some(stated) = stated else { return Ok(()) };
    let steps = [
        serde_json::to_value(inner.get_normalizer()).unwrap_or_default(),
        serde_json::to_value(inner.get_pre_tokenizer()).unwrap_or_default(),
    ];
    let defined = steps.iter().any(adds_prefix);
    if defined == stated || is_loaded_unchanged(dir)? {
        return Ok(());
    }
    let refused = RefusedField {
        field: PREFIX.to_owned(),
        got: stated.to_string(),
        supported: if defined {
            "true, as tokenizer.json adds a space in front of a text"
        } else {
            "false, as tokenizer.json adds no space in front of a text"
        },
    };
    Err(TokenizerError::Unsupported { path: dir.join(CONFIG), refused: Box::new(refused) })
}

/// Returns whether the folder's `config.json` is of a model whose tokenizer transformers does not rebuild.
fn is_loaded_unchanged(dir: &Path) -> Result<bool, TokenizerError> {
    let model = read_object(&dir.join("config.json"))?.unwrap_or_default();
    let model_type = model.get("model_type").and_then(Value::as_str);
    Ok(model_type.is_some_and(|model_type| LOADED_UNCHANGED.contains(&model_type)))
}

/// Returns whether a step of a tokenizer, or one within it, adds a space in front of a text.
fn adds_prefix(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("ByteLevel") => step[PREFIX] == true,
        Some("Metaspace") => step["prepend_scheme"] != "never",
        Some("Prepend") => step["prepend"] != "",
        Some("Sequence") => {
            let inner = [&step["normalizers"], &step["pretokenizers"]];
            inner.into_iter().filter_map(Value::as_array).flatten().any(adds_prefix)
        }
        _ => false,
    }
}

/// Returns whether a `config.json` is of a model of Mistral that transformers 4 saved, whose pattern
/// transformers 5 replaces.
fn is_old_mistral(model: &Map<String, Value>) -> bool {
    let text = |field: &str| model.get(field).and_then(Value::as_str).unwrap_or_default();
    let major = text("transformers_version").split('.').next().and_then(|major| major.parse::<u32>().ok());
    OF_MISTRAL.contains(&text("model_type")) && major.is_none_or(|major| major < 5)
}

/// Returns whether a pre-tokenizer begins with the pattern that transformers would set.
fn has_fixed_pattern(splitting: &Value) -> bool {
    splitting["pretokenizers"][0]["pattern"]["Regex"] == FIXED_PATTERN
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::Tokenizer;
    use super::*;

    /// Loads a tokenizer with these steps, fields of `tokenizer_config.json` and type of the model.
    fn loaded(steps: &Value, fields: &Value, model_type: &str) -> Result<(), TokenizerError> {
        let mut definition = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": { "<eos>": 0, "<unk>": 1 }, "unk_token": "<unk>" },
        });
        definition.as_object_mut().unwrap().extend(steps.as_object().unwrap().clone());
        let mut config = json!({ "eos_token": "<eos>" });
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let folder = tempfile::tempdir().unwrap();
        let model = json!({ "model_type": model_type });
        for (file, content) in [("tokenizer.json", definition), (CONFIG, config), ("config.json", model)] {
            fs::write(folder.path().join(file), content.to_string()).unwrap();
        }
        Tokenizer::load(folder.path()).map(drop)
    }

    #[test]
    fn a_prefix_that_only_transformers_would_add_or_leave_out_is_refused() {
        let bytes = |adds: bool| {
            let split = json!({ "type": "Digits", "individual_digits": true });
            let bytes = json!({
                "type": "ByteLevel", "add_prefix_space": adds, "trim_offsets": true, "use_regex": true
            });
            json!({ "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes] } })
        };
        let words = |scheme: &str| {
            let step =
                json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false });
            json!({ "pre_tokenizer": step })
        };
        let prepend = json!({ "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }
        ] } });
        let stated = |class: &str, adds: Value| json!({ "tokenizer_class": class, "add_prefix_space": adds });
        for (steps, class, adds) in [
            (bytes(true), "Qwen2Tokenizer", true),
            (bytes(false), "CohereTokenizerFast", false),
            (words("first"), "LlamaTokenizerFast", true),
            (words("never"), "LlamaTokenizer", false),
            (prepend, "LlamaTokenizerFast", true),
            (json!({}), "GPT2Tokenizer", false),
        ] {
            loaded(&steps, &stated(class, json!(adds)), "llama").unwrap();
            loaded(&steps, &stated(class, Value::Null), "llama").unwrap();
            let error = loaded(&steps, &stated(class, json!(!adds)), "llama").unwrap_err().to_string();
            let expected = format!("field `add_prefix_space`: {} is not supported, supported: {adds}", !adds);
            assert!(error.contains(&expected), "{error}");
            // These load tokenizer.json unchanged.
            loaded(&steps, &stated(class, json!(!adds)), "mistral").unwrap();
            loaded(&steps, &stated("TokenizersBackend", json!(!adds)), "llama").unwrap();
        }
    }

    #[test]
    fn a_pattern_of_mistral_is_replaced_by_transformers_unless_a_newer_release_saved_it() {
        let is_old = |model_type: &str, version: Value| {
            let model = json!({ "model_type": model_type, "transformers_version": version });
            is_old_mistral(model.as_object().unwrap())
        };
        assert!(is_old("mistral", json!("4.57.1")) && is_old("ministral", Value::Null));
        assert!(!is_old("mistral", json!("5.0.0")) && !is_old("qwen2", json!("4.57.1")));
        let split = |pattern: &str| json!({ "pretokenizers": [{ "pattern": { "Regex": pattern } }] });
        assert!(has_fixed_pattern(&split(FIXED_PATTERN)));
        assert!(!has_fixed_pattern(&split("a+")) && !has_fixed_pattern(&Value::Null));
    }
}
