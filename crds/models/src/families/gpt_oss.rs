//! GPT-OSS: attention sinks, a window in every other layer, and experts with biases and a clamped gate.

use serde_json::{Value, json};

use super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{ExpertForm, ExpertNames, Experts, ModelConfig, RopeScaling};
use super::{Defaults, Definition, write_attention_bias};

/// Limit to which gate and up are clamped; no configuration of transformers changes it.
const LIMIT: f64 = 7.0;

pub(super) const GPT_OSS: Definition = Definition {
    architecture: "GptOssForCausalLM",
    classifier: "GptOssForSequenceClassification",
    model_type: "gpt_oss",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(64),
        max_positions: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 150_000.0,
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    shape: |config| {
        config.attention_sinks = true;
        (config.qkv_bias, config.output_bias) = (true, true);
        let everywhere = Experts::everywhere(config.num_layers, ExpertNames::GPT_OSS);
        let intermediate_size = config.intermediate_size;
        config.experts = Some(Experts { form: ExpertForm::Clamped, intermediate_size, ..everywhere });
    },
    read: |fields, config| {
        let bias = fields.flag("attention_bias")?.unwrap_or(true);
        (config.qkv_bias, config.output_bias) = (bias, bias);
        let is_there = |field: &str| fields.get(field).is_some_and(|value| !value.is_null());
        if !["rope_parameters", "rope_scaling"].into_iter().any(is_there) {
            return Err(fields.missing("rope_parameters"));
        }
        if fields.number("swiglu_limit")?.is_some_and(|limit| limit != LIMIT) {
            return Err(fields.unsupported("swiglu_limit", "7.0"));
        }
        let window = window(fields, Some(128))?;
        let slides = |layer_idx: usize| layer_idx.is_multiple_of(2);
        config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_sizes(fields, &["num_experts", "num_local_experts"], 128, Some(4))
    },
    write,
};

fn write(config: &ModelConfig, document: &mut Value) {
    write_attention_bias(config, document);
    write_layer_types(config, document);
    if let Some(rope) = config.ropes.first().filter(|rope| rope.scaling == RopeScaling::None) {
        // An absent field means YaRN.
        document["rope_parameters"] = json!({"rope_type": "default", "rope_theta": rope.theta});
    }
    if let Some(experts) = &config.experts {
        document["num_local_experts"] = experts.num_experts.into();
        experts.write_sizes(document);
    }
}
