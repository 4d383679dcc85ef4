//! Mistral: Llama with one sliding window for all layers, or none.

use super::super::super::windows::window;
use super::super::{Defaults, Definition, nothing};

pub(in crate::plan::model_config::families) const MISTRAL: Definition = Definition {
    architecture: "MistralForCausalLM",
    classifier: "MistralForSequenceClassification",
    model_type: "mistral",
    defaults: Defaults { num_kv_heads: Some(8), max_positions: 131_072, ..Defaults::LLAMA },
    shape: nothing,
    read: |fields, config| {
        config.layer_windows = vec![window(fields, Some(4096))?; config.num_layers];
        Ok(())
    },
    write: |config, document| {
        document["sliding_window"] = config.layer_windows.first().copied().flatten().into();
    },
};
