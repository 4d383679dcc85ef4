//! List of the model families that the trainer supports.

/// Calls the macro `$with` with each family: its documentation, its name in manifests, and its definition
/// below `families` of `rlt-models`. The choice in manifests and the table of definitions are made of
/// this list, in the order in which errors name the families.
#[macro_export]
macro_rules! model_families {
    ($with:ident) => {
        $with! {
            /// Llama 2 and 3.
            Llama: llama::LLAMA,
            /// Mistral: Llama with an optional sliding window.
            Mistral: mistralai::mistral::MISTRAL,
            /// Ministral: Mistral with a sliding window in the layers that the configuration names.
            Ministral: mistralai::ministral::MINISTRAL,
            /// Qwen2 and Qwen2.5: biases on the query, key and value projections.
            Qwen2: qwen::qwen2::QWEN2,
            /// Qwen2-VL: Qwen2 with a vision tower.
            Qwen2Vl: qwen::qwen2_vl::QWEN2_VL,
            /// Qwen2.5-VL: Qwen2.5 with a vision tower that has window attention.
            Qwen25Vl: qwen::qwen2_vl::QWEN2_5_VL,
            /// Qwen3: norms of queries and keys.
            Qwen3: qwen::qwen3::QWEN3,
            /// Qwen3-VL: Qwen3 with a vision tower, whose features are also added after the first layers.
            Qwen3Vl: qwen::qwen3_vl::QWEN3_VL,
            /// Gemma 1: scaled embeddings, GELU, norm weights stored as offsets from 1.
            Gemma: google::gemma::GEMMA,
            /// Gemma 2: attention scores and logits are softcapped, and every other layer has a sliding
            /// window.
            Gemma2: google::gemma2::GEMMA2,
            /// Gemma 3, text: norms before and after each block, and another rotary embedding in layers
            /// with a sliding window.
            Gemma3: google::gemma3::GEMMA3,
            /// Phi-3, Phi-3.5 and Phi-4: fused projections.
            Phi3: phi3::PHI3,
            /// OLMo 2: norms after the blocks, and over all heads of queries and keys.
            Olmo2: olmo::olmo2::OLMO2,
            /// OLMo 3: OLMo 2 with a sliding window in all but every fourth layer.
            Olmo3: olmo::olmo3::OLMO3,
            /// Granite 3: scaled embeddings, attention, residual sums and logits.
            Granite: granite::GRANITE,
            /// SmolLM3: no rotary embedding in every fourth layer.
            SmolLm3: smollm3::SMOLLM3,
            /// GLM-4 9B: fused gate and up, rotary embedding of half of each head.
            Glm: zai_org::glm::GLM,
            /// GLM-4 (0414): norms before and after each block, rotary embedding of half of each head.
            Glm4: zai_org::glm4::GLM4,
            /// Seed-OSS: biases on the query, key and value projections, heads of width 128.
            SeedOss: seed_oss::SEED_OSS,
            /// Command R: layer norms, and feed-forward blocks parallel to attention.
            Cohere: cohere_labs::cohere::COHERE,
            /// Command R7B and A: Command R with sliding windows, and no rotary embedding in layers
            /// without one.
            Cohere2: cohere_labs::cohere2::COHERE2,
            /// EXAONE 4: norms after the blocks, and of each head of queries and keys.
            Exaone4: exaone4::EXAONE4,
            /// ERNIE 4.5, dense: Llama whose rotary embedding rotates adjacent dimensions.
            Ernie45: ernie4_5::ERNIE4_5,
            /// Mixtral: Mistral with experts as feed-forward blocks.
            Mixtral: mistralai::mixtral::MIXTRAL,
            /// Qwen2-MoE: Qwen2 with experts and a gated shared expert.
            Qwen2Moe: qwen::qwen2_moe::QWEN2_MOE,
            /// Qwen3-MoE: Qwen3 with experts in place of feed-forward blocks.
            Qwen3Moe: qwen::qwen3_moe::QWEN3_MOE,
            /// GPT-OSS: attention sinks, experts with biases and a clamped gate.
            GptOss: gpt_oss::GPT_OSS,
            /// DeepSeek-V2: latent attention, experts and a shared expert.
            DeepseekV2: deepseek::deepseek_v2::DEEPSEEK_V2,
            /// DeepSeek-V3 and R1: DeepSeek-V2 with experts chosen by sigmoid.
            DeepseekV3: deepseek::deepseek_v3::DEEPSEEK_V3,
        }
    };
}

pub(crate) use model_families;
