//! GLM-4 9B: Llama with fused gate and up, and a rotary embedding of adjacent dimensions in the first half of
//! each head.

use super::super::super::{FusedProjections, RopePairing};
use super::super::{Definition, write_attention_bias};
use super::glm4;

pub(in crate::families) const GLM: Definition = Definition {
    architecture: "GlmForCausalLM",
    classifier: "GlmForSequenceClassification",
    model_type: "glm",
    has_classifier: true,
    has_windows: false,
    defaults: glm4::DEFAULTS,
    shape: |config| {
        config.qkv_bias = true;
        config.rope_pairing = RopePairing::Neighbours;
        config.fused_projections = FusedProjections { qkv: false, gate_up: true };
    },
    read: glm4::read,
    write: write_attention_bias,
};
