//! Gemma 3, text: norms before and after each block, normed queries and keys, and two rotary embeddings: one
//! for layers with a window, one for layers with full attention.

use serde_json::{Value, json};

use super::super::super::fields::Fields;
use super::super::super::rope::{by_window, write_by_window};
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::super::{BlockNorms, ModelConfig, ModelConfigError, QkNorm};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::{gemma, gemma2};

pub(in crate::families) const GEMMA3: Definition = Definition {
    architecture: "Gemma3ForCausalLM",
    classifier: "Gemma3TextForSequenceClassification",
    model_type: "gemma3_text",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults {
        num_kv_heads: Some(4),
        activation_field: "hidden_activation",
        max_positions: 131_072,
        rope_theta: 1_000_000.0,
        ..gemma::DEFAULTS
    },
    shape: |config| {
        gemma::shape(config);
        config.qk_norm = QkNorm::Head;
        config.block_norms = BlockNorms::AROUND;
    },
    read,
    write,
};

fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    gemma2::read_scores(fields, config, [None, None])?;
    read_attention_bias(fields, config)?;
    let window = window(fields, Some(4096))?;
    let pattern = fields.size("sliding_window_pattern")?.unwrap_or(6);
    let slides = |layer_idx: usize| !(layer_idx + 1).is_multiple_of(pattern);
    config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
    by_window(fields, config, Some("rope_local_base_freq"), 10_000.0)
}

fn write(config: &ModelConfig, document: &mut Value) {
    write_attention_bias(config, document);
    write_layer_types(config, document);
    write_by_window(config, document);
    if let Some(local) = config.ropes.get(1) {
        document["rope_local_base_freq"] = json!(local.theta);
    }
    gemma2::write_scores(config, document);
    document["use_bidirectional_attention"] = false.into();
}
