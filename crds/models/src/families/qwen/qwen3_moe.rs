//! Qwen3-MoE: Qwen3 with experts instead of most or all feed-forward blocks.

use super::super::super::windows::window;
use super::super::super::{ExpertNames, Experts, ModelConfig, QkNorm};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::qwen2::DEFAULTS;

pub(in crate::families) const QWEN3_MOE: Definition = Definition {
    architecture: "Qwen3MoeForCausalLM",
    classifier: "Qwen3MoeForSequenceClassification",
    model_type: "qwen3_moe",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(4), ..DEFAULTS },
    shape: |config| {
        config.qk_norm = QkNorm::Head;
        config.experts = Some(Experts::everywhere(config.num_layers, ExpertNames::QWEN));
    },
    read: |fields, config| {
        read_attention_bias(fields, config)?;
        let used = fields.flag("use_sliding_window")?.unwrap_or(false);
        config.layer_windows = vec![window(fields, Some(4096))?.filter(|_| used); config.num_layers];
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_sizes(fields, &["num_local_experts", "num_experts"], 128, Some(8))?;
        experts.read_layers(fields)?;
        experts.intermediate_size = fields.size("moe_intermediate_size")?.unwrap_or(768);
        experts.normalises_weights = fields.flag("norm_topk_prob")?.unwrap_or(false);
        Ok(())
    },
    write: |config, document| {
        write_attention_bias(config, document);
        let window = config.layer_windows.first().copied().flatten();
        document["sliding_window"] = window.into();
        document["use_sliding_window"] = window.is_some().into();
        write_experts(config, document);
    },
};

fn write_experts(config: &ModelConfig, document: &mut serde_json::Value) {
    if let Some(experts) = &config.experts {
        experts.write_qwen(document);
        // transformers 5 writes this name.
        document["num_local_experts"] = experts.num_experts.into();
    }
}
