//! DeepSeek-V2: latent attention, and in all but the first layers experts with a shared one; experts are
//! chosen by softmax, from all or from the best groups.

use super::super::super::{ExpertNames, Experts, LatentAttention, RopePairing, Routing, SharedBlock};
use super::super::{Defaults, Definition};

pub(in crate::families) const DEEPSEEK_V2: Definition = Definition {
    architecture: "DeepseekV2ForCausalLM",
    classifier: "DeepseekV2ForSequenceClassification",
    model_type: "deepseek_v2",
    has_classifier: true,
    has_windows: false,
    defaults: Defaults { head_dim: Some(64), ..Defaults::LLAMA },
    shape: |config| {
        config.rope_pairing = RopePairing::Neighbours;
        let everywhere = Experts::everywhere(config.num_layers, ExpertNames::DEEPSEEK);
        config.experts = Some(Experts {
            shared_intermediate_size: Some(config.intermediate_size),
            shared_block: SharedBlock::UNGATED,
            normalises_weights: false,
            rounds_weights: false,
            routing: Routing::DEEPSEEK_V2,
            ..everywhere
        });
        config.set_latent_attention(LatentAttention::of_heads(config.head_dim));
    },
    read: |fields, config| {
        config.read_latent_attention(fields)?;
        if fields.flag("mlp_bias")?.unwrap_or(false) {
            return Err(fields.unsupported("mlp_bias", "false"));
        }
        // transformers does not read the field, and never normalises.
        if fields.flag("norm_topk_prob")?.unwrap_or(false) {
            return Err(fields.unsupported("norm_topk_prob", "false"));
        }
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_deepseek(fields, "num_experts", [64, 2, 1407, 0], None, 1.0)?;
        match fields.text("topk_method")?.unwrap_or("greedy") {
            "greedy" => Ok(()),
            "group_limited_greedy" => experts.read_groups(fields, [None, None], 1),
            _ => Err(fields.unsupported("topk_method", "greedy, group_limited_greedy")),
        }
    },
    write: |config, document| {
        config.write_latent_attention(document);
        document["mlp_bias"] = false.into();
        if let Some(experts) = &config.experts {
            experts.write_deepseek(document);
            let is_grouped = experts.routing.groups.is_some();
            document["topk_method"] = if is_grouped { "group_limited_greedy" } else { "greedy" }.into();
        }
    },
};
