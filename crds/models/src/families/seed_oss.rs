//! Seed-OSS: Llama with configurable biases.

use super::{Defaults, Definition};

pub(super) const SEED_OSS: Definition = Definition {
    architecture: "SeedOssForCausalLM",
    classifier: "SeedOssForSequenceClassification",
    model_type: "seed_oss",
    has_classifier: true,
    has_windows: false,
    defaults: Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 524_288,
        bos: Some(0),
        pad: Some(1),
        ..Defaults::LLAMA
    },
    shape: |config| config.qkv_bias = true,
    read: |fields, config| {
        config.qkv_bias = fields.flag("attention_bias")?.unwrap_or(true);
        config.output_bias = fields.flag("attention_out_bias")?.unwrap_or(false);
        config.mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
        Ok(())
    },
    write: |config, document| {
        document["attention_bias"] = config.qkv_bias.into();
        document["attention_out_bias"] = config.output_bias.into();
        document["mlp_bias"] = config.mlp_bias.into();
        // An absent field would mean 0.1, as for `attention_dropout`.
        document["residual_dropout"] = 0.0.into();
    },
};
