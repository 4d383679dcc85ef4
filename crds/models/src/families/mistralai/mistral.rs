//! Mistral: Llama with one sliding window for all layers, or none. With `layer_types` transformers reads it
//! as Ministral.

use serde_json::Value;

use super::super::super::ModelConfig;
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{Defaults, Definition, nothing};

pub(in crate::families) const MISTRAL: Definition = Definition {
    architecture: "MistralForCausalLM",
    classifier: "MistralForSequenceClassification",
    model_type: "mistral",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(8), max_positions: 131_072, ..Defaults::LLAMA },
    shape: nothing,
    read: |fields, config| {
        let window = window(fields, Some(4096))?;
        config.layer_windows = by_layer_types(fields, config.num_layers, window, |_| true)?;
        Ok(())
    },
    write,
};

fn write(config: &ModelConfig, document: &mut Value) {
    let first = config.layer_windows.first().copied().flatten();
    if config.layer_windows.iter().all(|window| *window == first) {
        document["sliding_window"] = first.into();
    } else {
        write_layer_types(config, document);
    }
}
