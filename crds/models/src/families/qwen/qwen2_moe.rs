//! Qwen2-MoE and Qwen1.5-MoE: Qwen2 with experts, and a gated shared expert that computes every token.

use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::super::{ExpertNames, Experts};
use super::super::{Defaults, Definition};
use super::qwen2::{DEFAULTS, MAX_WINDOW_LAYERS};

pub(in crate::families) const QWEN2_MOE: Definition = Definition {
    architecture: "Qwen2MoeForCausalLM",
    classifier: "Qwen2MoeForSequenceClassification",
    model_type: "qwen2_moe",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(16), ..DEFAULTS },
    shape: |config| {
        config.qkv_bias = true;
        let everywhere = Experts::everywhere(config.num_layers, ExpertNames::QWEN);
        let shared_intermediate_size = Some(config.intermediate_size);
        config.experts = Some(Experts { shared_intermediate_size, ..everywhere });
    },
    read: |fields, config| {
        config.qkv_bias = fields.flag("qkv_bias")?.unwrap_or(true);
        let used = fields.flag("use_sliding_window")?.unwrap_or(false);
        // transformers 5 writes 0 where windows are off.
        let window = if used { window(fields, Some(4096))? } else { None };
        let first_without = fields.count("max_window_layers")?.unwrap_or(MAX_WINDOW_LAYERS);
        // As in transformers 5: every second layer of the first `max_window_layers`.
        let slides = |layer_idx: usize| layer_idx < first_without && layer_idx.is_multiple_of(2);
        config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_sizes(fields, &["num_experts"], 60, Some(4))?;
        experts.read_layers(fields)?;
        experts.intermediate_size = fields.size("moe_intermediate_size")?.unwrap_or(1408);
        experts.normalises_weights = fields.flag("norm_topk_prob")?.unwrap_or(false);
        experts.shared_intermediate_size =
            Some(fields.size("shared_expert_intermediate_size")?.unwrap_or(5632));
        Ok(())
    },
    write: |config, document| {
        document["qkv_bias"] = config.qkv_bias.into();
        write_layer_types(config, document);
        document["use_sliding_window"] = config.layer_windows.iter().any(Option::is_some).into();
        if let Some(experts) = &config.experts {
            experts.write_qwen(document);
            document["shared_expert_intermediate_size"] = experts.shared_intermediate_size.into();
        }
    },
};
