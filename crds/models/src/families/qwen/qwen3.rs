//! Qwen3: normed queries and keys, heads of 128 dimensions whatever the hidden size.

use super::super::super::QkNorm;
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::qwen2::{DEFAULTS, MAX_WINDOW_LAYERS, read_windows, write_windows};

pub(in crate::families) const QWEN3: Definition = Definition {
    architecture: "Qwen3ForCausalLM",
    classifier: "Qwen3ForSequenceClassification",
    model_type: "qwen3",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { head_dim: Some(128), ..DEFAULTS },
    shape: |config| config.qk_norm = QkNorm::Head,
    read: |fields, config| {
        read_attention_bias(fields, config)?;
        read_windows(fields, config, MAX_WINDOW_LAYERS)
    },
    write: |config, document| {
        write_attention_bias(config, document);
        write_windows(config, document);
    },
};
