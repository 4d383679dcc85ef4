//! Ministral: Mistral with a sliding window that depends on the layer's type.

use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{Defaults, Definition, nothing};

pub(in crate::families) const MINISTRAL: Definition = Definition {
    architecture: "MinistralForCausalLM",
    classifier: "MinistralForSequenceClassification",
    model_type: "ministral",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(8), max_positions: 131_072, ..Defaults::LLAMA },
    shape: nothing,
    read: |fields, config| {
        let window = window(fields, Some(4096))?;
        config.layer_windows = by_layer_types(fields, config.num_layers, window, |_| true)?;
        Ok(())
    },
    write: write_layer_types,
};
