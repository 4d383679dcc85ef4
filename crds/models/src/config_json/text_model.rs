//! Vision-language models of which only the text model is trained: Gemma 3 with 4B parameters and more.

use serde_json::{Map, Value, json};

use super::super::{Family, families};

/// Class of Gemma 3 with a vision tower.
const GEMMA3: &str = "Gemma3ForConditionalGeneration";

/// Fields of the full model that also apply to its text model.
const SHARED: [&str; 5] =
    ["eos_token_id", "bos_token_id", "pad_token_id", "quantization_config", "tie_word_embeddings"];

/// Returns the values of transformers' `Gemma3TextConfig` for fields that a `text_config` leaves out.
fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "bos_token_id": 2, "pad_token_id": 0,
        "eos_token_id": 1,
    });
    defaults.as_object().cloned().unwrap_or_default()
}

/// Returns whether `document`, a `config.json`, is of a model whose vision tower is left out.
pub(crate) fn leaves_tower_out(document: &Value) -> bool {
    document["architectures"][0] == GEMMA3 && document["text_config"].is_object()
}

/// Returns the `config.json` of the text model; `None` for a model that is read as a whole.
pub(crate) fn text_config(document: &Value) -> Option<Value> {
    if !leaves_tower_out(document) {
        return None;
    }
    let mut text = defaults();
    text.extend(document["text_config"].as_object()?.clone());
    let shared = SHARED.into_iter().filter_map(|name| Some((name.to_owned(), document.get(name)?.clone())));
    text.extend(shared.filter(|(_, value)| !value.is_null()));
    let definition = families::definition(Family::Gemma3);
    text.insert("architectures".to_owned(), json!([definition.architecture]));
    text.insert("model_type".to_owned(), json!(definition.model_type));
    Some(text.into())
}
