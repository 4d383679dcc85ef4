//! Qwen2-VL and Qwen2.5-VL: Qwen2 with a vision tower, and a rotary embedding over time, height and width.

use serde_json::Value;

use super::super::super::fields::Fields;
use super::super::super::{ModelConfig, ModelConfigError, vision};
use super::super::{Defaults, Definition};
use super::qwen2::{self, read_windows, write_windows};

const DEFAULTS: Defaults = Defaults {
    num_kv_heads: Some(8),
    rms_norm_eps: 1e-5,
    rope_theta: 1_000_000.0,
    bos: Some(151_643),
    eos: &[151_645],
    ..qwen2::DEFAULTS
};
/// Default of `max_window_layers`.
const MAX_WINDOW_LAYERS: usize = 80;

pub(in crate::families) const QWEN2_VL: Definition = Definition {
    architecture: "Qwen2VLForConditionalGeneration",
    classifier: "Qwen2VLForSequenceClassification",
    model_type: "qwen2_vl",
    has_classifier: true,
    has_windows: true,
    defaults: DEFAULTS,
    shape: |config| config.qkv_bias = true,
    read,
    write,
};

pub(in crate::families) const QWEN2_5_VL: Definition = Definition {
    architecture: "Qwen2_5_VLForConditionalGeneration",
    classifier: "Qwen2_5_VLForSequenceClassification",
    model_type: "qwen2_5_vl",
    has_classifier: true,
    has_windows: true,
    defaults: DEFAULTS,
    shape: |config| config.qkv_bias = true,
    read,
    write,
};

fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    read_windows(fields, config, MAX_WINDOW_LAYERS)?;
    vision::read(fields, config)
}

fn write(config: &ModelConfig, document: &mut Value) {
    write_windows(config, document);
    vision::write(config, document);
}
