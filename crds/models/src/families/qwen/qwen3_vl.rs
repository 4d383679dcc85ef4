//! Qwen3-VL: Qwen3 with a vision tower, a rotary embedding whose pairs are interleaved over time, height and
//! width, and features that are added after the first layers.

use super::super::super::{QkNorm, vision};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::qwen2;

pub(in crate::families) const QWEN3_VL: Definition = Definition {
    architecture: "Qwen3VLForConditionalGeneration",
    classifier: "Qwen3VLForSequenceClassification",
    model_type: "qwen3_vl",
    has_classifier: false,
    has_windows: false,
    defaults: Defaults {
        num_kv_heads: Some(32),
        head_dim: Some(128),
        max_positions: 128_000,
        rope_theta: 500_000.0,
        ..qwen2::DEFAULTS
    },
    shape: |config| config.qk_norm = QkNorm::Head,
    read: |fields, config| {
        read_attention_bias(fields, config)?;
        vision::read(fields, config)
    },
    write: |config, document| {
        write_attention_bias(config, document);
        vision::write(config, document);
    },
};
