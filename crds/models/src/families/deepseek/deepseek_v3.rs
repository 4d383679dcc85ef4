//! DeepSeek-V3 and R1: DeepSeek-V2 with experts chosen by sigmoid and a bias, from the groups with the best
//! pairs of experts.

use super::super::super::{ExpertNames, Experts, LatentAttention, RopePairing, Routing, SharedBlock};
use super::super::{Defaults, Definition};

pub(in crate::families) const DEEPSEEK_V3: Definition = Definition {
    architecture: "DeepseekV3ForCausalLM",
    classifier: "DeepseekV3ForSequenceClassification",
    model_type: "deepseek_v3",
    has_classifier: true,
    has_windows: false,
    defaults: Defaults {
        head_dim: Some(64),
        max_positions: 4096,
        bos: Some(0),
        eos: &[1],
        ..Defaults::LLAMA
    },
    shape: |config| {
        config.rope_pairing = RopePairing::Neighbours;
        config.has_prediction_layers = true;
        let everywhere = Experts::everywhere(config.num_layers, ExpertNames::DEEPSEEK);
        config.experts = Some(Experts {
            shared_intermediate_size: Some(config.intermediate_size),
            shared_block: SharedBlock::UNGATED,
            rounds_weights: false,
            routing: Routing::DEEPSEEK_V3,
            ..everywhere
        });
        config.set_latent_attention(LatentAttention::of_heads(config.head_dim));
    },
    read: |fields, config| {
        config.read_rope_interleave(fields)?;
        config.read_latent_attention(fields)?;
        let Some(experts) = &mut config.experts else { return Ok(()) };
        experts.read_deepseek(fields, "num_local_experts", [256, 1, 2048, 3], Some(8), 2.5)?;
        experts.normalises_weights = fields.flag("norm_topk_prob")?.unwrap_or(true);
        experts.read_groups(fields, [Some(8), Some(4)], 2)
    },
    write: |config, document| {
        config.write_latent_attention(document);
        document["rope_interleave"] = (config.rope_pairing == RopePairing::Neighbours).into();
        // Multi-token prediction layers are not loaded, so none is written.
        document["num_nextn_predict_layers"] = 0.into();
        if let Some(experts) = &config.experts {
            experts.write_deepseek(document);
        }
    },
};
