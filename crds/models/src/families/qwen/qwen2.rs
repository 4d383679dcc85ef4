//! Qwen2 and Qwen2.5: biases on query, key and value projections; upper layers may have a sliding window.

use serde_json::Value;

use super::super::super::fields::Fields;
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::super::{ModelConfig, ModelConfigError};
use super::super::{Defaults, Definition};

/// Defaults of Qwen2 and later Qwen models.
pub(in crate::families) const DEFAULTS: Defaults =
    Defaults { num_kv_heads: Some(32), max_positions: 32_768, bos: None, eos: &[], ..Defaults::LLAMA };

pub(in crate::families) const QWEN2: Definition = Definition {
    architecture: "Qwen2ForCausalLM",
    classifier: "Qwen2ForSequenceClassification",
    model_type: "qwen2",
    has_classifier: true,
    has_windows: true,
    defaults: DEFAULTS,
    shape: |config| config.qkv_bias = true,
    read: |fields, config| read_windows(fields, config, MAX_WINDOW_LAYERS),
    write: write_windows,
};

/// Default of `max_window_layers`.
pub(in crate::families) const MAX_WINDOW_LAYERS: usize = 28;

/// Reads the windows, which only `use_sliding_window` enables: for the layers that `layer_types` lists, or
/// for all layers from `max_window_layers` on, which is `first_layer` by default.
pub(in crate::families) fn read_windows(
    fields: &Fields<'_>,
    config: &mut ModelConfig,
    first_layer: usize,
) -> Result<(), ModelConfigError> {
    let used = fields.flag("use_sliding_window")?.unwrap_or(false);
    let window = window(fields, Some(4096))?.filter(|_| used);
    let first = fields.count("max_window_layers")?.unwrap_or(first_layer);
    let slides = |layer_idx| layer_idx >= first;
    config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
    Ok(())
}

pub(in crate::families) fn write_windows(config: &ModelConfig, document: &mut Value) {
    write_layer_types(config, document);
    document["use_sliding_window"] = config.layer_windows.iter().any(Option::is_some).into();
    let first = config.layer_windows.iter().position(Option::is_some).unwrap_or(config.num_layers);
    document["max_window_layers"] = first.into();
}
