//! Settings of `tokenizer_config.json` that would change tokens and are not obeyed.

use std::path::Path;

use rlt_api::plan::model_files::{ModelFile, RefusedField};
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
    use serde_json::json;

    use super::*;

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
