//! Gemma 1: scaled embeddings, GELU, norm weights stored as an offset from 1.

use super::super::super::{HiddenActivation, ModelConfig};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};

/// Defaults of the Gemma family.
pub(super) const DEFAULTS: Defaults = Defaults {
    num_kv_heads: Some(16),
    head_dim: Some(256),
    max_positions: 8192,
    activation: "gelu_pytorch_tanh",
    tie_word_embeddings: true,
    bos: Some(2),
    eos: &[1],
    pad: Some(0),
    ..Defaults::LLAMA
};

pub(in crate::families) const GEMMA: Definition = Definition {
    architecture: "GemmaForCausalLM",
    classifier: "GemmaForSequenceClassification",
    model_type: "gemma",
    has_classifier: true,
    has_windows: false,
    defaults: DEFAULTS,
    shape,
    read: read_attention_bias,
    write: |config, document| {
        write_attention_bias(config, document);
        document["hidden_activation"] = document["hidden_act"].clone();
    },
};

pub(super) fn shape(config: &mut ModelConfig) {
    config.norm_offset = 1.0;
    config.embedding_scale = (config.hidden_size as f64).sqrt();
    config.hidden_activation = HiddenActivation::GeluTanh;
}
