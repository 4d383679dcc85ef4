//! Model families: their class names, the defaults of their configuration classes in transformers 5, and
//! their differences from Llama. A family is a file, in this folder or in that of its maker, and an entry of
//! [`FAMILIES`].

mod cohere;
mod cohere2;
mod deepseek;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt_oss;
mod granite;
mod llama;
mod mistralai;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen;
mod seed_oss;
mod smollm3;

use serde_json::Value;

use super::fields::Fields;
use super::{Family, ModelConfig, ModelConfigError};

/// Description of a family, one constant in its file.
pub(super) struct Definition {
    /// Class name in `architectures`.
    pub(super) architecture: &'static str,
    /// Class name of the sequence classifier with the same body.
    pub(super) classifier: &'static str,
    /// `model_type` of the configuration.
    pub(super) model_type: &'static str,
    /// Values of fields that `config.json` omits.
    pub(super) defaults: Defaults,
    /// Sets how every model of the family differs from Llama, whatever its configuration says.
    pub(super) shape: fn(&mut ModelConfig),
    /// Reads the fields that only some families' configurations have.
    pub(super) read: fn(&Fields<'_>, &mut ModelConfig) -> Result<(), ModelConfigError>,
    /// Writes the fields that `read` reads.
    pub(super) write: fn(&ModelConfig, &mut Value),
}

/// Values that a family's configuration class assumes for absent fields.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// Number of key and value heads; `None`: as many as query heads.
    pub(super) num_kv_heads: Option<usize>,
    /// Width of a head; `None`: hidden size divided by heads.
    pub(super) head_dim: Option<usize>,
    pub(super) max_positions: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    /// Rotated fraction of a head; `None` in families that rotate whole heads.
    pub(super) partial_rotary_factor: Option<f64>,
    /// `original_max_position_embeddings` of Phi-3, whose only scaling is LongRoPE; `None` elsewhere.
    pub(super) longrope_context: Option<usize>,
    /// Activation function of the gate.
    pub(super) activation: &'static str,
    /// Field of the activation function, `hidden_act` or `hidden_activation`.
    pub(super) activation_field: &'static str,
    pub(super) tie_word_embeddings: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: &'static [u32],
    pub(super) pad: Option<u32>,
}

impl Defaults {
    /// Defaults of Llama.
    pub(super) const LLAMA: Self = Self {
        num_kv_heads: None,
        head_dim: None,
        max_positions: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        partial_rotary_factor: None,
        longrope_context: None,
        activation: "silu",
        activation_field: "hidden_act",
        tie_word_embeddings: false,
        bos: Some(1),
        eos: &[2],
        pad: None,
    };
}

/// All families, in the order in which errors list them.
const FAMILIES: &[(Family, &Definition)] = &[
    (Family::Llama, &llama::LLAMA),
    (Family::Mistral, &mistralai::mistral::MISTRAL),
    (Family::Ministral, &mistralai::ministral::MINISTRAL),
    (Family::Qwen2, &qwen::qwen2::QWEN2),
    (Family::Qwen2Vl, &qwen::qwen2_vl::QWEN2_VL),
    (Family::Qwen25Vl, &qwen::qwen2_vl::QWEN2_5_VL),
    (Family::Qwen3, &qwen::qwen3::QWEN3),
    (Family::Qwen3Vl, &qwen::qwen3_vl::QWEN3_VL),
    (Family::Gemma, &gemma::GEMMA),
    (Family::Gemma2, &gemma2::GEMMA2),
    (Family::Gemma3, &gemma3::GEMMA3),
    (Family::Phi3, &phi3::PHI3),
    (Family::Olmo2, &olmo2::OLMO2),
    (Family::Olmo3, &olmo3::OLMO3),
    (Family::Granite, &granite::GRANITE),
    (Family::SmolLm3, &smollm3::SMOLLM3),
    (Family::Glm, &glm::GLM),
    (Family::Glm4, &glm4::GLM4),
    (Family::SeedOss, &seed_oss::SEED_OSS),
    (Family::Cohere, &cohere::COHERE),
    (Family::Cohere2, &cohere2::COHERE2),
    (Family::Exaone4, &exaone4::EXAONE4),
    (Family::Ernie45, &ernie4_5::ERNIE4_5),
    (Family::Mixtral, &mistralai::mixtral::MIXTRAL),
    (Family::Qwen2Moe, &qwen::qwen2_moe::QWEN2_MOE),
    (Family::Qwen3Moe, &qwen::qwen3_moe::QWEN3_MOE),
    (Family::GptOss, &gpt_oss::GPT_OSS),
    (Family::DeepseekV2, &deepseek::deepseek_v2::DEEPSEEK_V2),
    (Family::DeepseekV3, &deepseek::deepseek_v3::DEEPSEEK_V3),
];

impl Family {
    /// Yields all families, in the order in which errors list them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(|(family, _)| *family)
    }

    /// Class name in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.definition().architecture
    }

    /// Class name of the sequence classifier with the same body.
    pub fn classifier(self) -> &'static str {
        self.definition().classifier
    }

    /// `model_type` of the configuration.
    pub fn model_type(self) -> &'static str {
        self.definition().model_type
    }

    /// Whether transformers has classifiers with bodies of this family.
    pub fn has_classifier(self) -> bool {
        !matches!(self, Self::Cohere | Self::Cohere2 | Self::Ernie45 | Self::Qwen3Vl)
    }

    /// Whether models of the family have a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Self::Qwen2Vl | Self::Qwen25Vl | Self::Qwen3Vl)
    }

    /// Whether layers of the family may have a sliding window.
    pub fn has_windows(self) -> bool {
        !matches!(
            self,
            Self::Llama
                | Self::Gemma
                | Self::Olmo2
                | Self::Granite
                | Self::Glm
                | Self::Glm4
                | Self::SeedOss
                | Self::Cohere
                | Self::Ernie45
                | Self::DeepseekV2
                | Self::DeepseekV3
                | Self::Qwen3Vl
        )
    }

    pub(super) fn definition(self) -> &'static Definition {
        let own = FAMILIES.iter().find(|(family, _)| *family == self);
        own.map_or(&llama::LLAMA, |(_, definition)| definition)
    }
}

/// A [`Definition::shape`] without differences from Llama.
fn nothing(_: &mut ModelConfig) {}

/// Reads `attention_bias`, for the query, key, value and output projections.
fn read_attention_bias(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.output_bias) = (bias, bias);
    Ok(())
}

fn write_attention_bias(config: &ModelConfig, document: &mut Value) {
    document["attention_bias"] = config.qkv_bias.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_the_manifest_has_one_definition() {
        let schema = serde_json::to_value(schemars::schema_for!(Family)).unwrap_or_default().to_string();
        for (family, _) in FAMILIES {
            assert!(schema.contains(&format!("\"{family:?}\"")), "{family:?}");
            assert_eq!(FAMILIES.iter().filter(|(other, _)| other == family).count(), 1, "{family:?}");
        }
        assert_eq!(schema.matches("\"const\"").count(), FAMILIES.len(), "{schema}");
    }
}
