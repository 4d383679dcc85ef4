//! ERNIE 4.5, dense: Llama with a rotary embedding of adjacent dimensions, and biases everywhere or nowhere.

use super::super::RopePairing;
use super::{Defaults, Definition};

pub(super) const ERNIE4_5: Definition = Definition {
    architecture: "Ernie4_5ForCausalLM",
    classifier: "Ernie4_5ForSequenceClassification",
    model_type: "ernie4_5",
    has_classifier: false,
    has_windows: false,
    defaults: Defaults {
        num_kv_heads: Some(2),
        head_dim: Some(128),
        max_positions: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        tie_word_embeddings: true,
        pad: Some(0),
        ..Defaults::LLAMA
    },
    shape: |config| config.rope_pairing = RopePairing::Neighbours,
    read: |fields, config| {
        let bias = fields.flag("use_bias")?.unwrap_or(false);
        (config.qkv_bias, config.output_bias, config.mlp_bias) = (bias, bias, bias);
        Ok(())
    },
    write: |config, document| document["use_bias"] = config.qkv_bias.into(),
};
