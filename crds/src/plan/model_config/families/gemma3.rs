//! Gemma 3, text: norms before and behind each block, normalised queries and keys, and two rotary embeddings:
//! one for layers that slide, one for those that see everything.

use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::rope::{by_window, write_by_window};
use super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{BlockNorms, ModelConfig, ModelConfigError, QkNorm};
use super::{Defaults, Definition, gemma, read_attention_bias, write_attention_bias};

pub(super) const GEMMA3: Definition = Definition {
    architecture: "Gemma3ForCausalLM",
    classifier: "Gemma3TextForSequenceClassification",
    model_type: "gemma3_text",
    defaults: Defaults {
        num_kv_heads: Some(4),
        max_positions: 131_072,
        rope_theta: 1_000_000.0,
        ..gemma::DEFAULTS
    },
    shape: |config| {
        gemma::shape(config);
        config.qk_norm = QkNorm::Head;
        config.block_norms = BlockNorms {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_attention_layernorm"),
            before_mlp: Some("pre_feedforward_layernorm"),
            after_mlp: Some("post_feedforward_layernorm"),
        };
    },
    read,
    write,
};

fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if fields.number(cap)?.is_some() {
            return Err(fields.unsupported(cap, "null"));
        }
    }
    read_attention_bias(fields, config)?;
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scalar <= 0.0 {
        return Err(fields.invalid("query_pre_attn_scalar", "a number above 0"));
    }
    config.attention_scale = scalar.powf(-0.5);
    let window = window(fields, Some(4096))?;
    let pattern = fields.size("sliding_window_pattern")?.unwrap_or(6);
    let slides = |layer_idx: usize| !(layer_idx + 1).is_multiple_of(pattern);
    config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
    by_window(fields, config, ("rope_local_base_freq", 10_000.0))
}

fn write(config: &ModelConfig, document: &mut Value) {
    write_attention_bias(config, document);
    write_layer_types(config, document);
    write_by_window(config, document);
    if let Some(local) = config.ropes.get(1) {
        document["rope_local_base_freq"] = json!(local.theta);
    }
    document["hidden_activation"] = document["hidden_act"].clone();
    document["query_pre_attn_scalar"] = json!(whole(config.attention_scale.powi(-2)));
    document["attn_logit_softcapping"] = Value::Null;
    document["final_logit_softcapping"] = Value::Null;
    document["use_bidirectional_attention"] = false.into();
}

/// transformers wants an integer, which the root has made a number beside it.
fn whole(value: f64) -> u64 {
    value.round() as u64
}
