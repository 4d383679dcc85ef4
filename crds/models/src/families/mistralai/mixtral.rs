//! Mixtral: Mistral with experts instead of feed-forward blocks.

use super::super::super::windows::window;
use super::super::super::{ExpertNames, Experts};
use super::super::{Defaults, Definition};

pub(in crate::families) const MIXTRAL: Definition = Definition {
    architecture: "MixtralForCausalLM",
    classifier: "MixtralForSequenceClassification",
    model_type: "mixtral",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults {
        num_kv_heads: Some(8),
        max_positions: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        ..Defaults::LLAMA
    },
    shape: |config| {
        let everywhere = Experts::everywhere(config.num_layers, ExpertNames::MIXTRAL);
        let intermediate_size = config.intermediate_size;
        config.experts = Some(Experts { rounds_weights: false, intermediate_size, ..everywhere });
    },
    read: |fields, config| {
        config.layer_windows = vec![window(fields, None)?; config.num_layers];
        // With jitter an update would compute other log-probs than the policy that sampled.
        if fields.number("router_jitter_noise")?.is_some_and(|noise| noise != 0.0) {
            return Err(fields.unsupported("router_jitter_noise", "0.0"));
        }
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_sizes(fields, &["num_experts", "num_local_experts"], 8, Some(2))
    },
    write: |config, document| {
        document["sliding_window"] = config.layer_windows.first().copied().flatten().into();
        document["router_jitter_noise"] = 0.0.into();
        if let Some(experts) = &config.experts {
            document["num_local_experts"] = experts.num_experts.into();
            experts.write_sizes(document);
        }
    },
};
