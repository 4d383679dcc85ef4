//! GLM-4 (0414): norms before and after each block, fused gate and up, and a rotary embedding of adjacent
//! dimensions in the first half of each head.

use serde_json::Value;

use super::super::super::fields::Fields;
use super::super::super::{BlockNorms, FusedProjections, ModelConfig, ModelConfigError, RopePairing};
use super::super::{Defaults, Definition, write_attention_bias};

/// Defaults of both classes of GLM-4.
pub(super) const DEFAULTS: Defaults = Defaults {
    num_kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    rms_norm_eps: 1.5625e-7,
    partial_rotary_factor: Some(0.5),
    bos: None,
    eos: &[151_329, 151_336, 151_338],
    pad: Some(151_329),
    ..Defaults::LLAMA
};

pub(in crate::families) const GLM4: Definition = Definition {
    architecture: "Glm4ForCausalLM",
    classifier: "Glm4ForSequenceClassification",
    model_type: "glm4",
    has_classifier: true,
    has_windows: false,
    defaults: DEFAULTS,
    shape: |config| {
        config.qkv_bias = true;
        config.rope_pairing = RopePairing::Neighbours;
        config.fused_projections = FusedProjections { qkv: false, gate_up: true };
        config.block_norms = BlockNorms {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_self_attn_layernorm"),
            before_mlp: Some("post_attention_layernorm"),
            after_mlp: Some("post_mlp_layernorm"),
        };
    },
    read,
    write: write_attention_bias,
};

pub(super) fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    config.qkv_bias = fields.flag("attention_bias")?.unwrap_or(true);
    if fields.get("eos_token_id").is_some_and(Value::is_null) {
        // As in transformers, null stands for the default.
        config.eos_token_ids = DEFAULTS.eos.to_vec();
    }
    Ok(())
}
